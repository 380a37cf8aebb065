package multihost

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes with a link that goes over to another carrier, each as an edit of
// one file; TestGoesOverInUse has to notice.
var mutations = []testenv.Mutation{
	{Name: "the pair keeps no latch", File: "carriers.go", From: "f.names, f.why = append(f.names, useless...), append(f.why, why...)", To: "f.why = append(f.why, why...)"},
	{Name: "a latch outlives the process", File: "carriers.go", From: "\t\t*f = fallen{with: id}\n", To: "\t\tf.with = id\n"},
	{Name: "the paths stay", File: "view_links.go", From: "p.Carrier, p.Device = l.Carrier()", To: "_, _ = l.Carrier()"},
	{Name: "nothing is in standby", File: "carrier_negotiation.go", From: "next := g.common(rank, carrier); next != \"\"", To: "next := g.common(rank, carrier); next == carrier"},
	{Name: "it is not told", File: "view_links.go", From: "\t\tv.cfg.FellBack(path)\n", To: "\t\t_ = path\n"},
}

// TestMutations builds this package with each mistake in turn, and wants the test to
// notice. MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	for i := range mutations {
		mutations[i].Args = []string{"-timeout=100s", "-run", "^TestGoesOverInUse$"}
	}
	testenv.RunMutations(t, mutations)
}
