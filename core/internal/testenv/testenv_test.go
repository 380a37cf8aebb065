package testenv

import (
	"strings"
	"testing"
)

// recorder stands in for a test.
type recorder struct {
	testing.TB
	skipped, failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Skipf(string, ...any)  { r.skipped = true }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; panic("failed") }
func (r *recorder) Fatal(...any)          { r.failed = true; panic("failed") }
func (r *recorder) Log(...any)            {}

func TestLacking(t *testing.T) {
	for require, fails := range map[string]bool{"": false, "verbs": false, "cuda": true, "verbs,cuda": true, "all": true} {
		t.Setenv("MOEWIRE_REQUIRE", require)
		r := &recorder{}
		func() {
			defer func() { _ = recover() }()
			Lacking(r, "cuda", "no driver")
		}()
		if r.failed != fails || r.skipped == fails {
			t.Errorf("%q: %+v", strings.TrimSpace(require), r)
		}
	}
}

func TestSeed(t *testing.T) {
	t.Setenv("MOEWIRE_TEST_SEED", "")
	if first, second := Seed(t), Seed(t); first == second {
		t.Error("two tests draw the same seed")
	}
	t.Setenv("MOEWIRE_TEST_SEED", "0x10")
	if got := Seed(t); got != 16 {
		t.Errorf("the seed that was set is 16, not %d", got)
	}
	t.Setenv("MOEWIRE_TEST_SEED", "many")
	r := &recorder{}
	func() {
		defer func() { _ = recover() }()
		Seed(r)
	}()
	if !r.failed {
		t.Error("a seed that is no number was taken")
	}
}
