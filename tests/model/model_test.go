package model

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/moewire/moewire/tests/model/search"
)

// limit stops an exploration that has left its bounds: no configuration is
// meant to come near.
const limit = 40e6

// explore fails the test unless the protocol holds.
func explore(t *testing.T, m *Model) {
	t.Parallel()
	r := m.Explore(limit)
	t.Logf("%9d states, %5.1f s  %s", r.States, r.Time.Seconds(), m.Name)
	switch {
	case r.Broken != "":
		t.Fatalf("%s\n%s", r.Broken, r.Trace)
	case r.Stopped:
		t.Fatal("the states do not end")
	}
}

func onlyFull(t *testing.T) {
	if os.Getenv("MOEWIRE_MODEL") != "full" {
		t.Skip("MOEWIRE_MODEL=full explores larger configurations")
	}
}

// TestProtocol: the protocol as it is has every property.
func TestProtocol(t *testing.T) {
	for _, m := range configurations() {
		t.Run(m.Name, func(t *testing.T) { explore(t, m) })
	}
}

// TestProtocolFull has the configurations that take minutes.
func TestProtocolFull(t *testing.T) {
	onlyFull(t)
	for _, m := range largeConfigurations() {
		t.Run(m.Name, func(t *testing.T) { explore(t, m) })
	}
}

// TestWalks makes random runs of configurations that are too large to explore.
func TestWalks(t *testing.T) {
	for _, m := range walks() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			r := m.Walk(search.Seed(t), 3*time.Second)
			t.Logf("%9d steps", r.States)
			if r.Broken != "" {
				t.Fatalf("%s\n%s", r.Broken, r.Trace)
			}
		})
	}
}

// TestMutations: every broken rule breaks a property.
func TestMutations(t *testing.T) {
	for _, c := range mutants() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := c.model
			m.Mutation = c.mutation
			r := search.Result{}
			if c.walk {
				m.Mutation = none
				if r := m.Walk(1, time.Second); r.Broken != "" {
					t.Fatalf("broken without the mutation: %s", r.Broken)
				}
				m.Mutation = c.mutation
				r = m.Walk(1, time.Minute)
			} else {
				r = m.Explore(limit)
			}
			if r.Broken == "" {
				t.Fatalf("not caught in %d states of %s", r.States, m.Name)
			}
			t.Logf("%9d states, %5.1f s  %s: %s", r.States, r.Time.Seconds(), c.name, r.Broken)
			if testing.Verbose() && os.Getenv("MOEWIRE_MODEL") == "trace" {
				t.Log("\n" + r.Trace)
			}
		})
	}
}

// TestUnbroken: what the mutations are tried on holds without them.
func TestUnbroken(t *testing.T) {
	onlyFull(t)
	seen := map[string]bool{}
	for _, c := range mutants() {
		key := fmt.Sprintf("%+v", *c.model)
		if seen[key] || c.walk {
			continue
		}
		seen[key] = true
		t.Run(c.model.Name, func(t *testing.T) { explore(t, c.model) })
	}
}

// TestLimits: what the protocol does not promise. With two slots, a rank that
// does not combine what others combine has to release it explicitly.
func TestLimits(t *testing.T) {
	t.Parallel()
	skips := append([]Call{{Dispatch, 0}}, repeat(3, dc...)[2:]...)
	releases := append([]Call{{Dispatch, 0}, {Release, 0}}, repeat(3, dc...)[2:]...)
	for _, c := range []struct {
		name  string
		slots int
		other []Call
		want  string
	}{
		{"one slot: the next dispatch releases it", 1, skips, ""},
		{"two slots: too late", 2, skips, properties[stuck]},
		{"two slots, released", 2, releases, ""},
	} {
		m := two(c.name, c.slots, repeat(3, dc...), Model{Other: c.other, MayRelease: true})
		if r := m.Explore(limit); r.Broken != c.want {
			t.Errorf("%s: %q, want %q\n%s", c.name, r.Broken, c.want, r.Trace)
		}
	}
}

// TestExact: whole states and their hashes give the same exploration.
func TestExact(t *testing.T) {
	t.Parallel()
	m := two("exact", 1, repeat(2, Dispatch, Combine), Model{Suspicions: 2, Sparse: true})
	hashed := m.Explore(limit)
	m.Exact = true
	exact := m.Explore(limit)
	if hashed.States != exact.States || exact.Broken != "" {
		t.Fatalf("%d states by hash, %d exactly; %s", hashed.States, exact.States, exact.Broken)
	}
}
