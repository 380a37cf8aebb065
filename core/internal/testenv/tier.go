package testenv

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Tiers are the values of MOEWIRE_TIER, from the quickest to the longest: what
// `make check` runs, what `make test` runs too, what only `make test-all` runs,
// and what only `make test-long` does.
var Tiers = []string{"check", "test", "all", "long"}

// InTest keeps a test out of `make check`. A test that says nothing is in each
// tier up to `make test`.
func InTest(t testing.TB) { t.Helper(); in(t, "test") }

// InAll keeps a test for `make test-all`. It stands in the body of the test
// itself, not of a helper: .ci/tiers.py looks there for what `make test` has
// left out. A test that only has more rounds then asks testing.Short().
func InAll(t testing.TB) { t.Helper(); in(t, "all") }

// InLong keeps a test for `make test-long`, which CI does not run.
func InLong(t testing.TB) { t.Helper(); in(t, "long") }

// Long reports whether this is a run of `make test-long`: a test that has many cases
// runs all of them there, and elsewhere those that its seed picks.
func Long(t testing.TB) bool { t.Helper(); return tier(t) == "long" }

// in skips the test in the tiers below its own. That the run is of another tier
// is no lack of the machine's: MOEWIRE_REQUIRE does not turn it into a failure.
func in(t testing.TB, least string) {
	t.Helper()
	if slices.Index(Tiers, tier(t)) < slices.Index(Tiers, least) {
		t.Skipf("runs in %s (MOEWIRE_TIER=%s)", commands[least], least)
	}
}

// commands run the tiers.
var commands = map[string]string{"test": "make test", "all": "make test-all", "long": "make test-long"}

// tier is the one of this run: MOEWIRE_TIER, else the quickest with -short, and
// without it all that is not long.
func tier(t testing.TB) string {
	t.Helper()
	set := os.Getenv("MOEWIRE_TIER")
	switch {
	case slices.Contains(Tiers, set):
		return set
	case set != "":
		t.Fatalf("MOEWIRE_TIER is %q, allowed are %s", set, strings.Join(Tiers, ", "))
	case testing.Short():
		return "check"
	}
	return "all"
}
