package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/testenv"
)

// largeShape is that of operations of which the rings of newHosts hold a part.
func largeShape(ranks int) layout.Shape {
	s := shapeOf(ranks)
	s.MaxTokens = int64(12 * ranks)
	return s
}

// newLargeHosts makes buffers for such operations.
func newLargeHosts(t *testing.T, of string, ordered bool) *hosts {
	cfg := configFor(t, largeShape(len(of)))
	cfg.Deterministic = ordered
	return openHostsAs(t, of, true, cfg).connect(func(d domain.Domain) domain.Domain { return d })
}

// largeOps draws an operation of all ranks. Its tensors are used by no other one.
func (h *hosts) largeOps(rng *rand.Rand) (all []*op) {
	s := largeShape(len(h.ranks))
	for _, r := range h.ranks {
		all = append(all, newOpOf(r, s, int(s.MaxTokens)-rng.IntN(4), rng))
	}
	return all
}

// ends waits for every rank. If one does not end, all are taken out, so that the
// test can.
func (h *hosts) ends(what string) {
	h.t.Helper()
	done := make(chan struct{})
	go func() {
		for _, r := range h.ranks {
			r.sync()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		for _, r := range h.ranks {
			r.Abandon(errors.New("does not end"))
		}
		<-done
		require.FailNow(h.t, "does not end: "+what)
	}
	for _, r := range h.ranks {
		require.NoError(h.t, r.Err(), what)
	}
}

// How a rank ends an operation after it has launched the first phase.
type ending int

const (
	goesOn  ending = iota // by the second phase
	cancels               // by CancelReceive, or CancelReduce
	lets                  // by Release
)

// drawEndings has one rank give up at least, and one go on.
func drawEndings(ranks int, rng *rand.Rand) (all []ending) {
	for range ranks {
		all = append(all, ending(rng.IntN(3)))
	}
	who := rng.Perm(ranks)
	all[who[0]], all[who[1]] = cancels+ending(rng.IntN(2)), goesOn
	return all
}

func (o *op) endDispatch(how ending) {
	t, r, h := o.r.t, o.r, o.res.Handle
	if how == cancels {
		cancelled, err := r.CancelReceive(h, r.stream)
		require.NoError(t, err)
		require.True(t, cancelled)
		return
	}
	if how == goesOn {
		require.NoError(t, r.Receive(h))
	}
	require.NoError(t, r.Release(h, r.stream))
}

func (o *op) endCombine(how ending, ticket cuda.ReduceTicket) {
	t, r := o.r.t, o.r
	switch how {
	case goesOn:
		require.NoError(t, r.Reduce(ticket))
	case cancels:
		cancelled, err := r.CancelReduce(ticket, r.stream)
		require.NoError(t, err)
		require.True(t, cancelled)
	case lets:
		require.NoError(t, r.Release(o.res.Handle, r.stream))
	}
}

func (o *op) combineFirst() cuda.ReduceTicket {
	o.combin.Device.X = o.res.RecvX
	ticket, err := o.r.Combine(o.res.Handle, &o.combin, ep.PhaseSent)
	require.NoError(o.r.t, err)
	return ticket
}

// whole runs an operation that no rank gives up. It goes on from whatever the ranks
// have under way.
func (h *hosts) whole(rng *rand.Rand) (all []*op) {
	all = h.largeOps(rng)
	for _, o := range all {
		o.dispatch()
	}
	return all
}

func (h *hosts) endWhole(all []*op) {
	h.ends("a dispatch that nobody gives up")
	for r, o := range all {
		checkRows(all, r)
		o.combine()
	}
	h.ends("a combine that nobody gives up")
	for _, o := range all {
		o.check()
	}
}

// dispatchGivenUp: some ranks give up an operation behind the first phase of its
// dispatch, for which the rings had no room.
func (h *hosts) dispatchGivenUp(rng *rand.Rand) {
	all, how := h.largeOps(rng), drawEndings(len(h.ranks), rng)
	for _, o := range all {
		require.NoError(h.t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
	}
	h.ends("the first phases of a dispatch")
	for r, o := range all {
		o.endDispatch(how[r])
	}
	next := h.whole(rng)
	h.ends("what is left of a dispatch")
	for r := range all {
		if how[r] == goesOn { // the next one is in the other slot
			checkRows(all, r)
		}
	}
	h.endWhole(next)
}

// combineGivenUp: the same of a combine. A rank that goes on has all outputs.
func (h *hosts) combineGivenUp(rng *rand.Rand) {
	all, how := h.whole(rng), drawEndings(len(h.ranks), rng)
	h.ends("a dispatch")
	sums := make([]cuda.ReduceTicket, len(all))
	for r, o := range all {
		sums[r] = o.combineFirst()
	}
	h.ends("the first phases of a combine")
	for r, o := range all {
		o.endCombine(how[r], sums[r])
	}
	next := h.whole(rng)
	h.ends("what is left of a combine")
	for r, o := range all {
		if how[r] == goesOn {
			o.check()
		}
	}
	h.endWhole(next)
}

// TestHostsGiveUpBetweenPhases: a rank that goes on gets what it is sent by ranks that
// give up between two phases, and the operations that follow are whole.
func TestHostsGiveUpBetweenPhases(t *testing.T) {
	for _, of := range []string{"ab", "abc", "aab"} {
		for _, ordered := range []bool{false, true} {
			for turn := range 2 {
				if testing.Short() && (of != "abc" || !ordered) || turn > 0 && !testenv.Long(t) {
					continue
				}
				t.Run(fmt.Sprint(of, ordered, turn), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(testenv.Seed(t), uint64(83+turn)))
					h := newLargeHosts(t, of, ordered)
					for range 2 {
						h.dispatchGivenUp(rng)
						h.combineGivenUp(rng)
					}
				})
			}
		}
	}
}

// TestHostsGiveUpAsTheyLike: the same without a wait in between. Ranks are each at an
// operation of their own.
func TestHostsGiveUpAsTheyLike(t *testing.T) {
	for _, of := range []string{"ab", "abc"} {
		for turn := range 4 {
			if testing.Short() && (of != "abc" || turn > 0) || turn > 1 && !testenv.Long(t) {
				continue
			}
			t.Run(fmt.Sprint(of, turn), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(testenv.Seed(t), uint64(93+turn)))
				newLargeHosts(t, of, turn%2 == 1).givenUpAtWill(rng, 6)
			})
		}
	}
}

// givenUpAtWill runs n operations, some of which no rank combines, and then one that
// no rank gives up.
func (h *hosts) givenUpAtWill(rng *rand.Rand, n int) {
	var summed []*op
	for range n {
		all, how, combined := h.largeOps(rng), drawEndings(len(h.ranks), rng), rng.IntN(2) == 0
		for r, o := range all {
			require.NoError(h.t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
			if !combined {
				o.endDispatch(how[r])
				continue
			}
			o.endCombine(how[r], o.combineFirst())
			if how[r] == goesOn {
				summed = append(summed, o)
			}
		}
	}
	last := h.whole(rng)
	h.ends("operations that some give up")
	for _, o := range summed {
		o.check()
	}
	h.endWhole(last)
}
