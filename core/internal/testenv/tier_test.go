package testenv

import (
	"testing"
)

// TestTiers: a test runs in its own tier and in those behind it; a skip for the
// tier is none that MOEWIRE_REQUIRE makes a failure; another word is refused.
func TestTiers(t *testing.T) {
	t.Setenv("MOEWIRE_REQUIRE", "all")
	usual := "all"
	if testing.Short() {
		usual = "check"
	}
	for set, runs := range map[string][3]bool{
		"check": {false, false, false}, "test": {true, false, false}, "all": {true, true, false},
		"long": {true, true, true}, "": {usual == "all", usual == "all", false},
	} {
		t.Setenv("MOEWIRE_TIER", set)
		for i, in := range []func(testing.TB){InTest, InAll, InLong} {
			r := &recorder{}
			in(r)
			if r.failed || r.skipped == runs[i] {
				t.Errorf("%q: %s: failed %v, skipped %v", set, Tiers[i+1], r.failed, r.skipped)
			}
		}
	}
	for _, bad := range []string{"quick", "All", "test,all"} {
		t.Setenv("MOEWIRE_TIER", bad)
		r := &recorder{}
		func() {
			defer func() { _ = recover() }()
			InTest(r)
		}()
		if !r.failed {
			t.Errorf("%q was taken", bad)
		}
	}
}
