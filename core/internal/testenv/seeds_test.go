package testenv

import "testing"

func TestNumSeeds(t *testing.T) {
	for set, want := range map[string]uint64{"": 20, "1": 20, "50": 1000} {
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
