package search

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seed is a random number for Walk; MOEWIRE_TEST_SEED sets it, and a test that
// fails says what it was. core/internal/testenv has the same function, but Go
// lets no package outside of core import it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if set := os.Getenv("MOEWIRE_TEST_SEED"); set != "" {
		var err error
		if seed, err = strconv.ParseUint(set, 0, 64); err != nil {
			t.Fatalf("MOEWIRE_TEST_SEED is %q, not a number of 64 bits", set)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to see this again: MOEWIRE_TEST_SEED=%d", seed)
		}
	})
	return seed
}
