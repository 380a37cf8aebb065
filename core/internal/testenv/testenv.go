// Package testenv decides what a test does when the machine lacks something.
package testenv

import (
	"os"
	"strings"
	"testing"
)

// Lacking skips the test and says why, or fails it if MOEWIRE_REQUIRE, a list
// with commas, names what is lacking ("root", "cc", "cuda", ...) or is "all".
// Otherwise a machine that should have something could silently test nothing.
func Lacking(t testing.TB, what, reason string) {
	t.Helper()
	for _, need := range strings.Split(os.Getenv("MOEWIRE_REQUIRE"), ",") {
		if need == what || need == "all" {
			t.Fatalf("MOEWIRE_REQUIRE=%s: %s", need, reason)
		}
	}
	t.Skipf("no %s here: %s", what, reason)
}
