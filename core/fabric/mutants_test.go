//lint:file-ignore U1000 the lines of the edits use what is here

package fabric

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutant is a defect that TestMutants puts in, to show that it would be found.
type mutant uint8

const (
	sound             mutant = iota
	immAtOnce                // the immediate does not wait for the slices before it
	neverRefill              // a window shrinks
	keepCredits              // a slice that was not posted keeps its place
	boundless                // immediates are taken in without a bound
	pairInOrder              // a message is taken for the next one
	forgetOutstanding        // a retired connection's receivers are not told
)

// planted is the mutant that is in force now, in a build that has them: the lines of
// the edits ask for it.
var planted atomic.Uint32

func plant(m mutant) { planted.Store(uint32(m)) }

func hasMutant(m mutant) bool { return mutant(planted.Load()) == m }

// lastMessage is what pairInOrder counts.
var lastMessage atomic.Uint32

var mutantEdits = []testenv.Edit{
	{"post.go", "parts > 1 {", "parts > 1 && !hasMutant(immAtOnce) {"},
	{"post.go", "\tplaces, _, _ := f.placesOf(c, k)\n\tplaces.Add(-1)", "\tif hasMutant(keepCredits) {\n\t\tf.table.Complete(id, err, 0, 0)\n\t\treturn\n\t}\n\tplaces, _, _ := f.placesOf(c, k)\n\tplaces.Add(-1)"},
	{"window.go", "\tif room < want {", "\tif hasMutant(boundless) {\n\t\troom = want\n\t}\n\tif room < want {"},
	{"window.go", "\tcase !dead:\n", "\tcase hasMutant(neverRefill) && !dead:\n\tcase !dead:\n"},
	{"peers.go", "op.NewMatcher(f.cfg.NumUnmatched + f.cfg.RecvDepth)", "op.NewMatcher(f.boundOf())"},
	{"peer.go", "p.live.CompareAndSwap(was, nil)\n", "p.live.CompareAndSwap(was, nil) && !hasMutant(forgetOutstanding)\n"},
	{"poll.go", "imm = uint32(number(f.header.at(slot)))\n", "imm = uint32(number(f.header.at(slot)))\n\t\tif hasMutant(pairInOrder) {\n\t\t\timm = lastMessage.Add(1)\n\t\t}\n"},
}

func (f *Fabric) boundOf() int {
	if hasMutant(boundless) {
		return f.cfg.NumUnmatched
	}
	return f.cfg.NumUnmatched + f.cfg.RecvDepth
}

// TestMutants: each of these defects is found, and nothing is found without.
func TestMutants(t *testing.T) {
	if !testenv.Mutants(t, mutantEdits...) {
		return
	}
	t.Run("sound", func(t *testing.T) {
		require.True(t, immediatesInTime(t, sound))
		require.NoError(t, unmatched(t, sound))
		require.True(t, placesComeBack(t, sound, Write) && placesComeBack(t, sound, WriteImm))
		require.True(t, messagesPair(t, sound))
		require.True(t, receiversAreNotified(t, sound))
	})
	for name, found := range map[string]func(t *testing.T) bool{
		"imm at once":        func(t *testing.T) bool { return !immediatesInTime(t, immAtOnce) },
		"never refill":       func(t *testing.T) bool { return unmatched(t, neverRefill) != nil },
		"keep credits":       func(t *testing.T) bool { return !placesComeBack(t, keepCredits, Write) },
		"keep credits, imm":  func(t *testing.T) bool { return !placesComeBack(t, keepCredits, WriteImm) },
		"boundless":          func(t *testing.T) bool { return unmatched(t, boundless) != nil },
		"pair in order":      func(t *testing.T) bool { return !messagesPair(t, pairInOrder) },
		"forget outstanding": func(t *testing.T) bool { return !receiversAreNotified(t, forgetOutstanding) },
	} {
		t.Run(name, func(t *testing.T) { require.True(t, found(t)) })
	}
}
