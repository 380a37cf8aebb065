package testenv

import (
	"os"
	"strconv"
	"testing"
)

// NumSeeds is how many seeds a test of random schedules goes through: what it
// names, with -short a fifth, or MOEWIRE_TEST_SEEDS times as many.
func NumSeeds(t testing.TB, n int) uint64 {
	t.Helper()
	times := 1
	if set := os.Getenv("MOEWIRE_TEST_SEEDS"); set != "" {
		var err error
		if times, err = strconv.Atoi(set); err != nil || times < 1 || times > 1<<20 {
			t.Fatalf("MOEWIRE_TEST_SEEDS is %q, allowed 1 to 2^20", set)
		}
	}
	if testing.Short() {
		n = (n + 4) / 5
	}
	return uint64(n * times)
}
