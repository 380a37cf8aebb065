package testenv

import "testing"

// skipper is a test that ends when it is skipped.
type skipper struct{ recorder }

func (s *skipper) Skipf(string, ...any) { s.skipped = true; panic("skipped") }

// TestCableOnlyInItsMachine: a machine that is not the tests' own gets no other routes,
// also where it has the tools, the right and the devices.
func TestCableOnlyInItsMachine(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // what would be run is not there
	t.Setenv("MOEWIRE_REQUIRE", "")
	for _, set := range []string{"", "1"} {
		t.Setenv(machineVariable, set)
		for name, lay := range map[string]func(testing.TB) *Cable{"namespaces": NewCable, "devices": NewDeviceCable} {
			s := &skipper{}
			func() {
				defer func() { _ = recover() }()
				lay(s)
			}()
			if begun := s.failed; begun != (set != "") || s.skipped == begun {
				t.Errorf("%s, %q: %+v", name, set, s)
			}
		}
	}
}
