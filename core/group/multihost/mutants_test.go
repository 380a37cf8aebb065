//lint:file-ignore U1000 the lines of the edits use what is here

package multihost

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
)

// mutant names a rule that a test leaves out.
type mutant int

const (
	noMutant          mutant = iota
	decideAlone              // a proposer needs no vote of another rank
	anyHalf                  // two halves may both go on
	forgetPromise            // an acceptor takes older ballots
	forgetAccepted           // a proposer ignores what was accepted before
	deadByReportAlone        // voters need not know the dead themselves
	believeSuspicion         // voters do not contradict a lone suspicion
	neverFence               // a side without a quorum goes on
	numMutants
)

// planted is the mutant that is in force now, in a build that has them: the lines of
// the edits ask for it.
var planted mutant

func hasMutant(m mutant) bool { return planted == m }

var mutantEdits = []testenv.Edit{
	{"agreement.go", "if c.want.removals.Empty() {\n\t\treturn\n\t}\n\twaited", "if c.want.removals.Empty() || hasMutant(neverFence) {\n\t\treturn\n\t}\n\twaited"},
	{"agreement.go", "case 2*n > all,", "case hasMutant(decideAlone), 2*n > all,"},
	{"agreement.go", "return voters.Has(c.set.Min())\n", "return voters.Has(c.set.Min()) || hasMutant(anyHalf)\n"},
	{"agreement_message.go", "if m.ballot < c.promised {\n\t\treturn agreementMessage{}, false", "if m.ballot < c.promised && !hasMutant(forgetPromise) {\n\t\treturn agreementMessage{}, false"},
	{"agreement_message.go", "if m.inherited {\n\t\treturn false", "if m.inherited || hasMutant(believeSuspicion) {\n\t\treturn false"},
	{"proposer.go", "if m.accepted > t.best {", "if m.accepted > t.best && !hasMutant(forgetAccepted) {"},
	{"proposer.go", "t.gone = t.gone.And(m.gone)\n\tif m.accepted", "t.gone = t.gone.And(c.known(m))\n\tif m.accepted"},
	{"proposer.go", "t.gone = t.gone.And(m.gone)\n\tif c.quorum", "t.gone = t.gone.And(c.known(m))\n\tif c.quorum"},
}

// known are the ranks that the sender knows to be gone by itself.
func (c *agreement) known(m *agreementMessage) rankset.Set {
	if hasMutant(deadByReportAlone) {
		return c.gone
	}
	return m.gone
}

// TestMutants: TestLoneSuspicion can fail, and nothing is found without a mutant.
func TestMutants(t *testing.T) {
	if !testenv.Mutants(t, mutantEdits...) {
		return
	}
	t.Run("sound", func(t *testing.T) {
		planted = noMutant
		require.Empty(t, loneSuspicion())
		for seed := range uint64(1000) {
			require.False(t, anarchy(seed), "seed %d", seed)
		}
		for seed := range uint64(20) {
			_, broken := chaos(seed)
			require.Empty(t, broken, "seed %d", seed)
		}
	})
	t.Run("believe a suspicion", func(t *testing.T) {
		planted = believeSuspicion
		require.NotEmpty(t, loneSuspicion())
	})
}

// TestAgreementMutants: the checks can fail, for every rule that is left out.
func TestAgreementMutants(t *testing.T) {
	testenv.InAll(t)
	if raceEnabled {
		t.Skip("one goroutine only, and slow under the race detector")
	}
	if !testenv.Mutants(t, mutantEdits...) {
		return
	}
	for planted = noMutant + 1; planted < numMutants; planted++ {
		if planted == believeSuspicion {
			continue // TestMutants has it
		}
		t.Run(fmt.Sprint(planted), func(t *testing.T) {
			for seed := range uint64(40000) {
				if anarchy(seed) {
					t.Logf("anarchy, seed %d", seed)
					return
				}
				if seed%100 != 0 {
					continue
				}
				if _, broken := chaos(seed / 100); broken != "" {
					t.Logf("seed %d: %s", seed/100, broken)
					return
				}
			}
			t.Fatal("nothing broke")
		})
	}
}
