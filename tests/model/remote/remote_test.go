package remote

import (
	"os"
	"testing"
	"time"

	"github.com/moewire/moewire/tests/model/search"
)

// limit stops an exploration that has left its bounds.
const limit = 20e6

func (m *Model) explore() search.Result {
	return search.Explore[State](&mover{Model: m}, limit, false)
}

// TestProtocol: the protocol as it is has every property.
func TestProtocol(t *testing.T) {
	for _, m := range configurations() {
		t.Run(m.Name, func(t *testing.T) { explore(t, m) })
	}
}

// TestProtocolFull has the configurations that take minutes.
func TestProtocolFull(t *testing.T) {
	if os.Getenv("MOEWIRE_MODEL") != "full" {
		t.Skip("MOEWIRE_MODEL=full explores larger configurations")
	}
	for _, m := range largeConfigurations() {
		t.Run(m.Name, func(t *testing.T) { explore(t, m) })
	}
}

func explore(t *testing.T, m *Model) {
	t.Parallel()
	r := m.explore()
	t.Logf("%9d states, %5.1f s  %s", r.States, r.Time.Seconds(), m.Name)
	switch {
	case r.Broken != "":
		t.Fatalf("%s\n%s", r.Broken, r.Trace)
	case r.Stopped:
		t.Fatal("the states do not end")
	}
}

// TestMutations: every broken rule breaks a property.
func TestMutations(t *testing.T) {
	for _, c := range mutants() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := c.model
			m.Mutation, m.Lenient = c.mutation, true
			r := m.explore()
			if r.Broken != properties[c.want] {
				t.Fatalf("%d states of %s: %q, want %q", r.States, m.Name, r.Broken, properties[c.want])
			}
			t.Logf("%9d states, %5.1f s  %s: %s", r.States, r.Time.Seconds(), c.name, r.Broken)
			if testing.Verbose() && os.Getenv("MOEWIRE_MODEL") == "trace" {
				t.Log("\n" + r.Trace)
			}
		})
	}
}

// TestWalks makes random runs of configurations that are too large to explore.
func TestWalks(t *testing.T) {
	for _, m := range walks() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			r := search.Walk[State](&mover{Model: m}, search.Seed(t), time.Second)
			t.Logf("%9d steps", r.States)
			if r.Broken != "" {
				t.Fatalf("%s\n%s", r.Broken, r.Trace)
			}
		})
	}
}
