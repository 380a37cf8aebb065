package testenv

import "testing"

func TestNumSeeds(t *testing.T) {
	full := uint64(20)
	if testing.Short() {
		full = 4
	}
	for set, want := range map[string]uint64{"": full, "1": full, "50": 50 * full} {
		t.Setenv("MOEWIRE_TEST_SEEDS", set)
		if got := NumSeeds(t, 20); got != want {
			t.Errorf("%q: %d seeds, not %d", set, got, want)
		}
	}
	for _, bad := range []string{"0", "-1", "all"} {
		t.Setenv("MOEWIRE_TEST_SEEDS", bad)
		r := &recorder{}
		func() {
			defer func() { _ = recover() }()
			NumSeeds(r, 20)
		}()
		if !r.failed {
			t.Errorf("%q was taken", bad)
		}
	}
}
