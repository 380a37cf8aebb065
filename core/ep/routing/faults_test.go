package routing_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/op"
)

// crew is a world with a routing on every rank.
type crew struct {
	*world
	doms    []domain.Domain
	s       shape
	ins     []input
	members []*member
}

func newCrew(t testing.TB, ranks, tokens int) *crew {
	doms := oneHost(ranks)
	c := &crew{world: newWorld(t, doms, 16), doms: doms}
	c.s = shape{ranks: ranks, topK: 3, experts: 2 * ranks, hidden: 64}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range ranks {
		c.ins = append(c.ins, randomInput(rnd, c.s, tokens))
	}
	c.members = make([]*member, ranks)
	c.each(func(r int) error { return c.makeAgain(r) })
	return c
}

func (c *crew) makeAgain(rank int) (err error) {
	c.members[rank], err = makeRouting(c.groups[rank], rank, c.s, c.ins)
	return err
}

// scatterArgs are good ones of a member.
func (m *member) scatterArgs() *routing.ScatterArgs {
	rb := 2 * m.s.hidden
	return &routing.ScatterArgs{X: m.ins[m.rank].x, RowBytes: rb, Out: make([]byte, m.NumRows()*rb), Timeout: -1}
}

func (m *member) gatherArgs() *routing.GatherArgs {
	rb := 2 * m.s.hidden
	return &routing.GatherArgs{X: make([]byte, m.NumRows()*rb), Hidden: m.s.hidden, Out: make([]byte, m.NumTokens()*rb), Timeout: -1}
}

// results runs f on every rank and returns all errors.
func (c *crew) results(f func(m *member) error) []error {
	errs := make([]error, len(c.members))
	c.each(func(r int) error { errs[r] = f(c.members[r]); return nil })
	return errs
}

// works checks that every form still gives the right rows.
func (c *crew) works() {
	c.t.Helper()
	c.each(func(r int) error { return errors.Join(c.members[r].scatterCompact(), c.members[r].gatherCompact()) })
}

// TestDifferentCalls: both sides get an error that names both calls, and the group goes on.
func TestDifferentCalls(t *testing.T) {
	c := newCrew(t, 2, 40)
	for i, err := range c.results(func(m *member) error {
		if m.rank == 0 {
			return run(m.group.Scatter(m.Routing, m.scatterArgs()))
		}
		return run(m.group.Gather(m.Routing, m.gatherArgs()))
	}) {
		require.ErrorIs(t, err, ep.ErrMismatch, i)
		require.ErrorContains(t, err, "scatter")
		require.ErrorContains(t, err, "gather")
	}
	c.works()
}

// TestDifferentRows: rows of two sizes.
func TestDifferentRows(t *testing.T) {
	c := newCrew(t, 2, 40)
	for _, err := range c.results(func(m *member) error {
		a := m.scatterArgs()
		a.RowBytes /= 1 + m.rank
		return run(m.group.Scatter(m.Routing, a))
	}) {
		require.ErrorIs(t, err, ep.ErrMismatch)
		require.ErrorContains(t, err, "bytes per row is ")
	}
	c.works()
}

// TestDifferentRoutings: ranks make routings with other numbers, or use different ones.
func TestDifferentRoutings(t *testing.T) {
	c := newCrew(t, 2, 40)
	args := func(m *member, topK, experts int) *routing.Args {
		return &routing.Args{NumTokens: 4, TopK: topK, NumExperts: experts, TopkIdx: make([]int64, 4*topK), Timeout: -1}
	}
	makes := func(topK, experts func(rank int) int) []error {
		return c.results(func(m *member) error {
			_, call, err := m.group.Make(args(m, topK(m.rank), experts(m.rank)))
			return run(call, err)
		})
	}
	four := func(int) int { return 4 }
	grows := func(rank int) int { return 4 * (1 + 7*rank) } // rows of the first round differ
	for _, err := range makes(grows, four) {
		require.ErrorIs(t, err, ep.ErrMismatch)
		require.ErrorContains(t, err, "num_topk is ")
	}
	for _, err := range makes(four, grows) {
		require.ErrorIs(t, err, ep.ErrMismatch)
		require.ErrorContains(t, err, "num_experts is ")
	}
	c.works()
}

// TestAnotherRouting: one rank uses a routing that the others do not. The rows do not fit it, and
// the group's epoch ends: some ranks may have noticed nothing.
func TestAnotherRouting(t *testing.T) {
	c := newCrew(t, 2, 40)
	first := c.members[0]
	c.ins = append([]input(nil), c.ins...)
	c.ins[1] = randomInput(rand.New(rand.NewPCG(3, 3)), c.s, 30)
	c.each(func(r int) error { return c.makeAgain(r) })
	second := c.members[0]
	errs := c.results(func(m *member) error {
		if m.rank == 0 {
			m = first
		}
		return run(m.group.Scatter(m.Routing, m.scatterArgs()))
	})
	require.ErrorContains(t, errs[0], "it uses another routing")
	require.ErrorContains(t, run(second.group.Scatter(second.Routing, second.scatterArgs())), "it uses another routing")
}

// lostCases are the ways in which a rank is not there. The last one is the rank.
var lostCases = map[string]func(c *crew){
	"closed": func(c *crew) { _ = c.bufs[2].Close() },
	"late":   func(*crew) {},
}

// TestLostRank: the others get an error that names the rank, and the epoch is over for them. After
// an update the old routings say that they are of another epoch, and new ones work.
func TestLostRank(t *testing.T) {
	for name, lose := range lostCases {
		for _, use := range []protocol.Use{protocol.ForScatter, protocol.ForGather, protocol.ForRouting} {
			t.Run(name+" in a "+use.String(), func(t *testing.T) {
				c := newCrew(t, 3, 40)
				lose(c)
				errs := c.results(func(m *member) error {
					if m.rank == 2 {
						return nil
					}
					return m.call(use, time.Second)
				})
				for _, err := range errs[:2] {
					require.ErrorIs(t, err, ep.ErrLost)
					require.ErrorContains(t, err, "2")
				}
				require.ErrorIs(t, c.members[0].call(use, -1), ep.ErrLost, "until an update")
				c.update(2)
				require.ErrorIs(t, c.members[1].call(protocol.ForScatter, -1), ep.ErrStaleHandle)
			})
		}
	}
}

// call makes a good call of some use.
func (m *member) call(use protocol.Use, timeout time.Duration) error {
	switch use {
	case protocol.ForScatter:
		a := m.scatterArgs()
		a.Timeout = timeout
		return run(m.group.Scatter(m.Routing, a))
	case protocol.ForGather:
		a := m.gatherArgs()
		a.Timeout = timeout
		return run(m.group.Gather(m.Routing, a))
	}
	in := &m.ins[m.rank]
	_, call, err := m.group.Make(&routing.Args{NumTokens: in.tokens, NumExperts: m.s.experts, TopK: m.s.topK, TopkIdx: in.ids, Timeout: timeout})
	return run(call, err)
}

// update begins an epoch without one rank, and checks that new routings work in it.
func (c *crew) update(without int) {
	c.t.Helper()
	epoch, base := membership.Epoch(0), uint64(0)
	for r, b := range c.bufs {
		if r == without {
			inproc.Dismiss(c.doms[0], r)
			continue
		}
		st, err := b.Prepare()
		require.NoError(c.t, err)
		epoch, base = max(epoch, st.Epoch), max(base, st.Next)
		inproc.Return(c.doms[r])
	}
	for r, b := range c.bufs {
		if r != without {
			require.NoError(c.t, b.Install(epoch+1, base, nil))
		}
	}
}

// TestGivenUp: a call that a caller gives up once it has begun ends the others', too.
func TestGivenUp(t *testing.T) {
	c := newCrew(t, 2, 60)
	gaveUp := make(chan struct{})
	errs := c.results(func(m *member) error {
		if m.rank == 1 {
			<-gaveUp
			return m.call(protocol.ForScatter, -1)
		}
		defer close(gaveUp)
		call, err := m.group.Scatter(m.Routing, m.scatterArgs())
		if err != nil {
			return err
		}
		if err := call.Drive(time.Millisecond); err != ep.ErrInProgress {
			return err
		}
		call.Cancel()
		return call.Drive(-1)
	})
	require.ErrorIs(t, errs[0], op.ErrCancelled)
	require.ErrorIs(t, errs[1], ep.ErrLost)
	require.ErrorIs(t, c.members[0].call(protocol.ForGather, -1), ep.ErrLost)
}

// TestHeldSlots: handles that are held leave no slot. Nothing has happened then.
func TestHeldSlots(t *testing.T) {
	c := newCrew(t, 2, 40)
	held := make([][]uint64, 2)
	c.each(func(r int) error {
		for range 2 {
			res, err := c.dispatch(r)
			if err != nil {
				return err
			}
			held[r] = append(held[r], res)
		}
		return nil
	})
	for len(held[0]) > 0 { // one of two is enough: rounds come to its slot
		for _, use := range []protocol.Use{protocol.ForScatter, protocol.ForRouting} {
			for _, err := range c.results(func(m *member) error { return m.call(use, -1) }) {
				require.ErrorIs(t, err, ep.ErrHeld)
			}
		}
		for r, ops := range held {
			require.NoError(t, c.bufs[r].Release(ops[0]))
			held[r] = ops[1:]
		}
	}
	c.works()
}

// dispatch makes a flat dispatch without tokens.
func (c *crew) dispatch(rank int) (uint64, error) {
	var res ep.Result
	_, err := c.bufs[rank].Dispatch(&ep.DispatchArgs{
		Flat: true, Columns: ep.Columns{NoRouting: true}, Hidden: 64, TopK: 1, MaxTokens: 8, NumExperts: c.s.experts,
		RecvCount: make([]int32, 1), LayoutRange: make([]int64, c.s.ranks), Timeout: -1,
	}, &res, ep.PhaseDone, -1)
	return res.Op, err
}

// TestBetweenHosts: rows of remote ranks come as messages.
func TestBetweenHosts(t *testing.T) {
	for seed := range uint64(4) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		s := shape{ranks: 4, topK: 5, experts: 8, hidden: 512, extra: 24}
		doms := inproc.NewHosts(rankSet(4), layoutBytes, inproc.Hosts{Of: []int{0, 0, 1, 1}, WordsBytes: wordsBytes, MaxDelay: 3, DelaySeed: seed})
		w := newWorld(t, doms, 16)
		ins := make([]input, 4)
		for r := range ins {
			ins[r] = randomInput(rnd, s, rnd.IntN(200))
		}
		w.each(func(rank int) error { return allForms(w.groups[rank], rank, s, ins) })
	}
}

// TestManyRoutings: 64 routings are alive, and used in random order.
func TestManyRoutings(t *testing.T) {
	const ranks, num = 3, 64
	w := newWorld(t, oneHost(ranks), 16)
	rnd := rand.New(rand.NewPCG(7, 7))
	s := shape{ranks: ranks, topK: 4, experts: 6, hidden: 64, extra: 8}
	ins := make([][]input, num)
	for i := range ins {
		for range ranks {
			ins[i] = append(ins[i], randomInput(rnd, s, rnd.IntN(30)))
		}
	}
	order := rnd.Perm(num)
	w.each(func(rank int) error {
		var all []*member
		for i := range ins {
			m, err := makeRouting(w.groups[rank], rank, s, ins[i])
			if err != nil {
				return err
			}
			all = append(all, m)
		}
		for _, i := range order {
			if err := errors.Join(all[i].gatherCompact(), all[i].scatterExpanded(4)); err != nil {
				return err
			}
		}
		return nil
	})
}
