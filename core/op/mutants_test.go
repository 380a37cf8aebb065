//lint:file-ignore U1000 the lines of the edits use what is here

package op

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutant is a defect that TestMutants puts in, to show that it would be found.
type mutant uint8

const (
	sound        mutant = iota
	noGeneration        // a completion counts for the transfer that has the slot now
	freeAtCancel        // a cancelled transfer's slot is free at once
	freeAtDrop          // a dropped transfer's slot is free at once
	lastError           // a later error replaces the first
	countTwice          // a completion counts each time it comes
	wrapEarly           // generations begin anew after 2^16
	numMutants
)

// planted is the mutant that is in force now, in a build that has them: the lines of
// the edits ask for it.
var planted atomic.Uint32

func plant(m mutant) { planted.Store(uint32(m)) }

func hasMutant(m mutant) bool { return mutant(planted.Load()) == m }

var mutants = map[string]mutant{
	"no generation": noGeneration, "free at cancel": freeAtCancel, "free at drop": freeAtDrop,
	"the last error": lastError, "count twice": countTwice, "wrap early": wrapEarly,
}

var mutantEdits = []testenv.Edit{
	{"table.go", "s.gen != uint32(id>>32):", "s.gen != uint32(id>>32) && !hasMutant(noGeneration):"},
	{"table.go", ">>(part%64)&1 == 1:", ">>(part%64)&1 == 1 && !hasMutant(countTwice):"},
	{"table.go", "s.imm = imm\n\t} else {", "s.imm = imm\n\t} else {\n\t\tif hasMutant(lastError) && s.op.State() == Failed {\n\t\t\ts.op = Op{}\n\t\t}"},
	{"table.go", "if s.left > 0 || !s.dropped ||", "if !(hasMutant(freeAtCancel) && s.op.State() == Cancelled || hasMutant(freeAtDrop) && s.dropped) && (s.left > 0 || !s.dropped) ||"},
	{"table.go", "\tt.stats.InUse--\n", "\tif hasMutant(wrapEarly) {\n\t\ts.gen = max(s.gen%(1<<16), 1)\n\t}\n\tt.stats.InUse--\n"},
}

// TestMutants: each of these defects is found, and nothing is found without.
func TestMutants(t *testing.T) {
	if !testenv.Mutants(t, mutantEdits...) {
		return
	}
	seed := seedOf(t)
	require.Len(t, mutants, int(numMutants-1))
	check := func(m mutant) error {
		plant(m)
		err := checkWrap()
		for i := uint64(0); err == nil && i < 200; i++ {
			err = run(seed + i)
		}
		return err
	}
	t.Run("sound", func(t *testing.T) { require.NoError(t, check(sound)) })
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			err := check(m)
			require.Error(t, err)
			t.Log(err)
		})
	}
}

// checkWrap (CO11): a slot's generations differ until all 2^32 - 1 of them were
// used. 0 is left out, so that the zero Ref names no transfer. When they begin anew,
// no request of the carrier names the former ones any more: a slot is free
// only once each of its requests has ended.
func checkWrap() error {
	table, err := NewTable(1)
	if err != nil {
		return err
	}
	for _, from := range []uint32{1, 1<<16 - 2, 1<<24 - 2, 1<<31 - 2, 1<<32 - 3} {
		table.slots[0].gen = from
		last := from - 1
		for range 4 {
			r, err := table.Begin(1)
			want := last + 1
			if want == 0 {
				want = 1
			}
			if err != nil {
				return err
			}
			if r.gen != want {
				return fmt.Errorf("generation %d came after %d", r.gen, last)
			}
			old := Ref{gen: last}
			if got := table.Complete(old.RequestID(0), nil, 0, 0); got != Stale {
				return fmt.Errorf("a completion of generation %d was %d, not stale, in %d", last, got, r.gen)
			}
			if got := table.Complete(r.RequestID(0), nil, 0, 0); got != Counted {
				return fmt.Errorf("a completion of generation %d was %d, not counted", r.gen, got)
			}
			if err := table.Drop(r); err != nil {
				return err
			}
			last = r.gen
		}
	}
	return nil
}

func TestCO11Wrap(t *testing.T) { require.NoError(t, checkWrap()) }

// TestZeroRef (CO2, CO11): no transfer has the zero Ref or request number 0, also when
// a slot's generations begin anew.
func TestZeroRef(t *testing.T) {
	table, err := NewTable(1)
	require.NoError(t, err)
	for _, gen := range []uint32{table.slots[0].gen, 1<<32 - 1, 0} {
		if gen != 0 {
			table.slots[0].gen = gen
		}
		r, err := table.Begin(1)
		require.NoError(t, err)
		require.Equal(t, Stale, table.Complete(0, nil, 0, 0))
		require.ErrorIs(t, table.Drop(Ref{}), ErrStale)
		require.Equal(t, Counted, table.Complete(r.RequestID(0), nil, 0, 0))
		require.NoError(t, table.Drop(r))
		require.Equal(t, Stale, table.Complete(r.RequestID(0), nil, 0, 0))
	}
}
