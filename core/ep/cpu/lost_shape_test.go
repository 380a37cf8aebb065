package cpu_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// lostShape is a world in which the third rank has called dispatch with a larger shape, has
// reserved rows, and dies before it publishes them. Until then the test stores what its
// calls would store.
type lostShape struct {
	*world
	ins  []input
	ends []chan error
}

func newLostShape(t *testing.T) *lostShape {
	w := &lostShape{world: newWorld(t, trio.ranks, ep.Config{NumBytes: 16 << 20}), ends: make([]chan error, trio.ranks)}
	for r := range trio.ranks {
		w.ins = append(w.ins, randomInput(r2(r), trio.maxTokens, trio.hidden, trio.topk, trio.experts, uniform))
	}
	return w
}

// begin starts a dispatch and combine of a rank without a deadline.
func (w *lostShape) begin(rank int, call func(rank int) error) {
	w.ends[rank] = make(chan error, 1)
	go func() { w.ends[rank] <- call(rank) }()
}

func (w *lostShape) compared(rank int) error {
	_, err := w.exchange(rank, trio, w.ins, -1)
	return err
}

// combined is a dispatch and a combine of the rows that have come.
func (w *lostShape) combined(rank int) error {
	d := new(dispatched)
	a := w.args(rank, trio, &w.ins[rank], d)
	a.ActiveRanks, a.Timeout = ones(trio.ranks), -1
	if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
		return err
	}
	d.compute(rank, trio)
	_, err := w.combine(rank, trio, &w.ins[rank], d)
	return err
}

// reserved waits until sources have reserved all their rows of an owner.
func (w *lostShape) reserved(owner int, sources ...int) {
	w.eachExpert(owner, func(l int, word counter) {
		want := 0
		for _, s := range sources {
			n := len(wantRows(&w.ins[s], trio.topk, int64(owner*trio.experts/trio.ranks+l)))
			require.NotZero(w.t, n)
			want += n
		}
		require.Eventually(w.t, func() bool { return word.Load() == uint64(want) }, callTimeout, time.Millisecond)
	})
}

// reserveMore does what the lost rank does: it reserves more rows of each expert than the
// shape of the others has.
func (w *lostShape) reserveMore(owner int) {
	w.eachExpert(owner, func(_ int, word counter) { word.Add(uint64(100 * trio.ranks * trio.maxTokens)) })
}

type counter interface {
	Load() uint64
	Add(uint64) uint64
}

func (w *lostShape) eachExpert(owner int, f func(l int, word counter)) {
	slab, err := w.doms[owner].Slab(owner, 0)
	require.NoError(w.t, err)
	for l := range trio.experts / trio.ranks {
		f(l, slab.Word(layout.Counter(l)))
	}
}

// costsTheLostRankAlone expects the others to be members, without a violation, and to go on.
func (w *lostShape) costsTheLostRankAlone() {
	for r := range 2 {
		require.EqualValues(w.t, rankset.Of(0, 1), w.bufs[r].Members(), "rank %d", r)
		require.Zero(w.t, w.bufs[r].Counters().NumViolations, "rank %d", r)
	}
	w.exchangeAll(trio, rankset.Of(0, 1))
	w.exchangeAll(trio, rankset.Of(0, 1))
}

// TestLostRankOfAnotherShape: the others had reserved before it, and get right results.
func TestLostRankOfAnotherShape(t *testing.T) {
	w := newLostShape(t)
	w.begin(0, w.compared)
	w.begin(1, w.compared)
	for owner := range 2 {
		w.reserved(owner, 0, 1)
		w.reserveMore(owner)
	}
	inproc.MarkDying(w.doms[0], 2)
	for r := range 2 {
		require.NoError(t, within(t, w.ends[r]), "rank %d", r)
	}
	w.costsTheLostRankAlone()
}

// TestLostRankThatTookTheRoom: a rank that comes after the lost rank finds no room. Its
// dispatch fails, as with ranks that disagree, and so do combines that need it. It does not
// take the owner's memory for overwritten.
func TestLostRankThatTookTheRoom(t *testing.T) {
	w := newLostShape(t)
	w.begin(0, w.combined)
	w.reserved(0, 0)
	w.reserveMore(0)
	w.begin(1, w.combined)
	w.reserved(1, 0, 1)
	inproc.MarkDying(w.doms[0], 2)
	require.ErrorIs(t, within(t, w.ends[1]), ep.ErrMismatch)
	require.ErrorIs(t, within(t, w.ends[0]), ep.ErrNotCombined) // it needs the rows that went to rank 1
	w.costsTheLostRankAlone()
}
