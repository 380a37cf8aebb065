package op

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutants are the defects that TestMutants puts in.
var mutants = map[string]mutant{
	"no generation": noGeneration, "free at cancel": freeAtCancel, "free at drop": freeAtDrop,
	"the last error": lastError, "count twice": countTwice, "wrap early": wrapEarly,
}

// TestMutants: each of these defects is found.
func TestMutants(t *testing.T) {
	seed := seedOf(t)
	require.Len(t, mutants, int(numMutants-1))
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			err := checkWrap(m)
			for i := uint64(0); err == nil && i < 200; i++ {
				err = run(seed+i, m)
			}
			require.Error(t, err)
			t.Log(err)
		})
	}
}

// checkWrap (CO11): a slot's generations differ until all 2^32 - 1 of them were
// used. 0 is left out, so that the zero Ref names no transfer. When they begin anew,
// no request of the carrier names the former ones any more: a slot is free
// only once each of its requests has ended.
func checkWrap(m mutant) error {
	table, err := NewTable(1)
	if err != nil {
		return err
	}
	table.mutant = m
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

func TestCO11Wrap(t *testing.T) { require.NoError(t, checkWrap(sound)) }

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
