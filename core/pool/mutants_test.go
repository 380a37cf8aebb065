//lint:file-ignore U1000 the lines of the edits use what is here

package pool

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutant is a defect that TestMutants puts in, to show that it would be found.
type mutant uint8

const (
	sound              mutant = iota
	checkThenAllocate         // the bound is looked at, not reserved
	countList                 // the bound counts free values, not live ones
	forgetReservation         // a failed Make keeps its place
	releaseTwice              // a lease can be released again
	loseWakeup                // a release wakes no waiter
	queueOutsideTheCap        // released values are no longer counted
	numMutants
)

// planted is the mutant that is in force now, in a build that has them: the lines of
// the edits ask for it.
var planted atomic.Uint32

func plant(m mutant) { planted.Store(uint32(m)) }

func hasMutant(m mutant) bool { return mutant(planted.Load()) == m }

var mutants = map[string]mutant{
	"check then allocate": checkThenAllocate, "cap by list length": countList, "forget a reservation": forgetReservation,
	"release twice": releaseTwice, "lose a wake-up": loseWakeup, "queue outside the cap": queueOutsideTheCap,
}

var mutantEdits = []testenv.Edit{
	{"pool.go", "case len(p.empty) > 0:", "case p.mayMake():"},
	{"pool.go", "i := pop(&p.empty)", "p.grow()\n\ti := pop(&p.empty)"},
	{"pool.go", "\tp.stats.Live++\n", "\tif !hasMutant(checkThenAllocate) {\n\t\tp.stats.Live++\n\t}\n"},
	{"pool.go", "\tp.stats.Made++\n", "\tp.stats.Made++\n\tif hasMutant(checkThenAllocate) {\n\t\tp.stats.Live++\n\t}\n"},
	{"pool.go", "p.stats.Failed++\n\t\tp.vacate(i)", "p.stats.Failed++\n\t\tif !hasMutant(forgetReservation) {\n\t\t\tp.vacate(i)\n\t\t}"},
	{"pool.go", "\t\tp.stats.Queued++\n", "\t\tp.stats.Queued++\n\t\tp.uncountQueued()\n"},
	{"pool.go", "&& e.gen == l.gen", "&& (e.gen == l.gen || hasMutant(releaseTwice))"},
	{"pool.go", "if len(p.waiters) > 0 {", "if !hasMutant(loseWakeup) && len(p.waiters) > 0 {"},
	{"wait.go", "if len(p.waiters) == 0 ||", "if hasMutant(loseWakeup) || len(p.waiters) == 0 ||"},
}

func (p *Pool[T]) mayMake() bool {
	switch {
	case hasMutant(countList):
		return len(p.free) < p.cfg.Cap
	case hasMutant(checkThenAllocate):
		return p.stats.Live < p.cfg.Cap
	}
	return len(p.empty) > 0
}

// grow makes a place where a mutant has none left.
func (p *Pool[T]) grow() {
	if len(p.empty) == 0 {
		p.entries = append(p.entries, entry[T]{})
		p.empty = append(p.empty, uint32(len(p.entries)-1))
	}
}

func (p *Pool[T]) uncountQueued() {
	if hasMutant(queueOutsideTheCap) {
		p.stats.Live--
		p.empty = append(p.empty, uint32(len(p.entries)))
		p.entries = append(p.entries, entry[T]{})
		p.queue.at = append(p.queue.at, 0)
	}
}

// TestMutants: each of these defects is found, and nothing is found without.
func TestMutants(t *testing.T) {
	if !testenv.Mutants(t, mutantEdits...) {
		return
	}
	seed := seedOf(t)
	require.Len(t, mutants, int(numMutants-1))
	check := func(m mutant, clean bool) error {
		plant(m)
		err := checkSteps()
		for i := uint64(0); err == nil && i < 5; i++ {
			err = checkStorm(seed+i, clean)
		}
		return err
	}
	t.Run("sound", func(t *testing.T) {
		require.NoError(t, check(sound, false))
		require.NoError(t, check(sound, true))
	})
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			err := check(m, m == queueOutsideTheCap)
			require.Error(t, err)
			t.Log(err)
		})
	}
}
