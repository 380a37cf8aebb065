package testenv

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seed is where a test's random choices begin: MOEWIRE_TEST_SEED if it is set,
// else another number every time. A test that fails prints it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if set := os.Getenv("MOEWIRE_TEST_SEED"); set != "" {
		n, err := strconv.ParseUint(set, 0, 64)
		if err != nil {
			t.Fatalf("MOEWIRE_TEST_SEED is %q, not a number of 64 bits", set)
		}
		seed = n
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to see this again: MOEWIRE_TEST_SEED=%d", seed)
		}
	})
	return seed
}
