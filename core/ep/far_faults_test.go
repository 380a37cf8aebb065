package ep_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/inproc"
)

func farInput(rank int) input { return randomInput(r2(rank), 4, 16, 2, 4, uniform) }

// TestFarDataWins: what a rank had sent before it was lost counts, also if
// nobody has looked at it yet.
func TestFarDataWins(t *testing.T) {
	useHosts(t, twoHosts)
	for range 20 {
		w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
		ins := []input{farInput(0), farInput(1)}
		var d dispatched
		p, err := w.bufs[1].Dispatch(w.args(1, small, &ins[1], &d), &d.res, ep.PhaseSent, -1)
		require.NoError(t, err)
		require.NotNil(t, p)
		inproc.Kill(w.doms[0], 1)
		mine, mask := new(dispatched), ones(2)
		a := w.args(0, small, &ins[0], mine)
		a.ActiveRanks = mask
		_, err = w.bufs[0].Dispatch(a, &mine.res, ep.PhaseDone, -1)
		require.NoError(t, err)
		require.Equal(t, []int32{1, 1}, mask)
		require.NoError(t, mine.check(0, small, ins))
		mine.compute(0, small)
		out := make([]byte, ins[0].tokens*small.hidden*2)
		c := combineArgs(mine, &ins[0], out)
		c.ActiveRanks = mask
		_, err = w.bufs[0].Combine(mine.res.Op, c, ep.PhaseDone, -1)
		require.NoError(t, err)
		require.Equal(t, []int32{1, 0}, mask, "it has sent no outputs")
		require.Equal(t, wantCombine(&ins[0], small.hidden, small.topk, func(e int64) bool { return e >= 2 }), out)
	}
}

// TestFarLeftOut: a rank that another one has left out with its mask comes when
// that one has combined and released. It hears of outputs after its own rows.
func TestFarLeftOut(t *testing.T) {
	useHosts(t, twoHosts)
	for range 10 {
		w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
		ins := []input{farInput(0), farInput(1)}
		var d dispatched
		a := w.args(0, small, &ins[0], &d)
		a.ActiveRanks = []int32{1, 0}
		_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
		require.NoError(t, err)
		d.compute(0, small)
		out, err := w.combine(0, small, &ins[0], &d)
		require.NoError(t, err)
		require.Equal(t, wantCombine(&ins[0], small.hidden, small.topk, func(e int64) bool { return e >= 2 }), out)
		require.NoError(t, w.bufs[0].Release(d.res.Op))
		quietCounters(w.bufs[0])
		late, err := w.dispatch(1, small, &ins[1])
		require.NoError(t, err)
		late.compute(1, small)
		_, err = w.combine(1, small, &ins[1], late)
		require.NoError(t, err)
		w.exchangeAll(small, 0b11)
		for _, b := range w.bufs {
			require.Zero(t, b.Counters().NumMessagesDropped)
		}
	}
}

// TestFarChaos: ranks of several hosts die or come late in the middle of
// operations, and return with updates; what the others get is what the oracle
// says of the ranks that their masks name.
func TestFarChaos(t *testing.T) {
	r := seeded(t)
	rounds := 10
	if testing.Short() {
		rounds = 4
	}
	if raceEnabled {
		t.Skip("a goroutine that stands for a process cannot be killed: it still stores rows, into holes that others read")
	}
	for range rounds {
		h := randomHosts(r)
		useHosts(t, func(int) inproc.Hosts { return h })
		n := len(h.Of)
		all := uint64(1)<<n - 1
		s := shape{ranks: n, maxTokens: 1 + r.IntN(9), hidden: 16, experts: 2 * n, topk: 1 + r.IntN(4)}
		w := newWorld(t, n, ep.Config{NumBytes: 24 << 20})
		for range 3 {
			w.exchangeAll(s, all)
			victim := r.IntN(n)
			w.lose(r, s, all, victim, r.IntN(2) == 0)
			w.exchangeAll(s, all&^(1<<victim))
			w.meet(all, 1<<victim)
		}
		w.exchangeAll(s, all)
		for _, b := range w.bufs {
			require.NoError(t, b.Close())
		}
	}
}

// lose runs operations of everybody, in which one rank dies or sleeps.
func (w *world) lose(r *rand.Rand, s shape, all uint64, victim int, dies bool) {
	after := time.Duration(r.IntN(1500)) * time.Microsecond
	ins := inputs(r, s, uniform)
	w.some(all, func(rank int) error {
		if rank == victim {
			if dies {
				ghost := *w // who takes its place is another one
				ghost.bufs = slices.Clone(w.bufs)
				go func() { _, _ = ghost.exchange(rank, s, ins, time.Second) }()
				time.Sleep(after)
				inproc.Kill(w.doms[0], victim)
			}
			return nil
		}
		for range 3 {
			if _, err := w.exchange(rank, s, ins, 500*time.Millisecond); err != nil {
				return fmt.Errorf("victim %d, dies %v: %w", victim, dies, err)
			}
		}
		return nil
	})
}

// alone is rank 0 with a buffer, in an operation, and what rank 1 can send it.
type alone struct {
	*world
	far transport.Far
	d   dispatched
	in  input
	p   *ep.Pending
}

func newAlone(t testing.TB, deterministic bool) *alone {
	overHosts = twoHosts
	defer func() { overHosts = nil }()
	a := &alone{world: &world{t: t, doms: newDomains(2, 0b11), bufs: make([]*ep.Buffer, 2)}}
	b, err := ep.New(a.doms[0], cpu.NewReference(), ep.Config{NumBytes: 16 << 20, Deterministic: deterministic})
	require.NoError(t, err)
	a.bufs[0] = b
	t.Cleanup(a.end)
	a.far = a.doms[1].Far()
	a.in = farInput(0)
	a.p, err = b.Dispatch(a.args(0, small, &a.in, &a.d), &a.d.res, ep.PhaseDone, 0)
	require.ErrorIs(t, err, ep.ErrInProgress)
	return a
}

// end closes the buffer, which would wait for who takes nothing.
func (a *alone) end() {
	inproc.Kill(a.doms[0], 1)
	_ = a.bufs[0].Close()
}

// send posts one message and waits until it was taken.
func (a *alone) send(msg []byte) {
	for {
		to, err := a.far.Reserve(0, int64(len(msg)))
		if err != nil {
			require.ErrorIs(a.t, err, transport.ErrWouldBlock)
			runtime.Gosched()
			continue
		}
		copy(to, msg)
		require.NoError(a.t, a.far.Post(0, int64(len(msg))))
		break
	}
	_ = a.p.Wait(ep.PhaseDone, 0)
	for a.far.Next(0) != nil {
		a.far.Release(0)
	}
}

// rowsMessage is a right one: rank 1's pairInput, to rank 0.
func (a *alone) rowsMessage(total, first, n int) []byte {
	in := farInput(1)
	var tokens []int
	var lens []byte
	var entries []uint16
	counts := [2]uint32{}
	for t := range in.tokens {
		k := byte(0)
		for _, id := range in.topk[t*small.topk : (t+1)*small.topk] {
			if id < 2 {
				entries = append(entries, uint16(id))
				counts[id]++
				k++
			}
		}
		if k > 0 {
			tokens, lens = append(tokens, t), append(lens, k)
		}
	}
	msg := make([]byte, 96)
	head(msg, 2, 1, 1, 0, 0)
	for i, v := range []uint64{1, uint64(small.maxTokens), uint64(small.hidden), uint64(small.experts), 0, uint64(small.topk), uint64(in.tokens), 0} {
		binary.LittleEndian.PutUint64(msg[16+8*i:], v)
	}
	for i, v := range []int{len(tokens), 0, len(tokens), len(entries)} {
		binary.LittleEndian.PutUint32(msg[80+4*i:], uint32(v))
	}
	align := func(n int) {
		for len(msg)%n != 0 {
			msg = append(msg, 0)
		}
	}
	for _, c := range counts {
		msg = binary.LittleEndian.AppendUint32(msg, c)
	}
	for _, t := range tokens {
		msg = binary.LittleEndian.AppendUint32(msg, uint32(t))
	}
	align(8)
	msg = append(msg, lens...)
	align(8)
	for _, e := range entries {
		msg = binary.LittleEndian.AppendUint16(msg, e)
	}
	align(64)
	for _, t := range tokens {
		msg = append(msg, in.x[t*small.hidden*2:(t+1)*small.hidden*2]...)
	}
	return msg
}

func head(msg []byte, kind byte, epoch, rank, slot uint16, op uint64) {
	msg[0], msg[1] = 1, kind
	binary.LittleEndian.PutUint16(msg[2:], epoch)
	binary.LittleEndian.PutUint16(msg[4:], rank)
	binary.LittleEndian.PutUint16(msg[6:], slot)
	binary.LittleEndian.PutUint64(msg[8:], op)
}

func wordsMessage(open, y, done uint64) []byte {
	msg := make([]byte, 40)
	head(msg, 1, 1, 1, 0, 0)
	for i, v := range []uint64{open, y, done} {
		binary.LittleEndian.PutUint64(msg[16+8*i:], v)
	}
	return msg
}

// TestFarMessages: a message made by the table in docs/wire.md is taken; one
// that is wrong anywhere is dropped, counted, and changes nothing.
func TestFarMessages(t *testing.T) {
	for _, deterministic := range []bool{false, true} {
		a := newAlone(t, deterministic)
		good := a.rowsMessage(0, 0, 0)
		var bad [][]byte
		change := func(f func(msg []byte) []byte) { bad = append(bad, f(append([]byte(nil), good...))) }
		put32 := func(at int, v uint32) {
			change(func(m []byte) []byte { binary.LittleEndian.PutUint32(m[at:], v); return m })
		}
		change(func(m []byte) []byte { return m[:10] })
		change(func(m []byte) []byte { return m[:90] })
		change(func(m []byte) []byte { return m[:len(m)-1] })
		change(func(m []byte) []byte { return append(m, 0) })
		for at, v := range map[int]byte{0: 2, 1: 9, 2: 2, 3: 1, 4: 0, 6: 1, 7: 255} { // head
			change(func(m []byte) []byte { m[at] = v; return m })
		}
		for i := range 8 { // params
			change(func(m []byte) []byte { binary.LittleEndian.PutUint64(m[16+8*i:], 1<<63+5); return m })
		}
		put32(80, 100) // rows in all
		put32(84, 1)   // the first piece is missing
		put32(88, 1<<31)
		put32(92, 1)
		put32(96, 1<<31) // counts
		put32(96, 0)
		put32(100, binary.LittleEndian.Uint32(good[80:])) // more rows than the lists have
		put32(104, 77)                                    // a token that there is not
		put32(108, 0)                                     // the same again
		change(func(m []byte) []byte { m[bytesAt(m)]++; return m })
		change(func(m []byte) []byte { m[bytesAt(m)+8] = 2; return m }) // an expert
		for i, m := range bad {
			before := a.bufs[0].Counters().NumMessagesDropped
			a.send(m)
			require.Equal(t, before+1, a.bufs[0].Counters().NumMessagesDropped, "message %d", i)
			require.ErrorIs(t, a.p.Wait(ep.PhaseDone, 0), ep.ErrInProgress)
		}
		before := a.bufs[0].Counters().NumMessagesDropped
		a.send(wordsMessage(1<<16, 0, layout.Counted(0, 0, true))) // done before rows
		require.Equal(t, before+1, a.bufs[0].Counters().NumMessagesDropped)
		a.send(wordsMessage(1<<16, 0, 0))
		a.send(good)
		require.NoError(t, a.p.Wait(ep.PhaseDone, 5*time.Second))
		require.NoError(t, a.p.Result(&a.d.res))
		require.NoError(t, a.d.check(0, small, []input{a.in, farInput(1)}))
		require.Equal(t, before+1, a.bufs[0].Counters().NumMessagesDropped)
		a.send(good)
		require.Eventually(t, func() bool { return a.bufs[0].Counters().NumMessagesDropped == before+2 },
			5*time.Second, time.Millisecond, "twice")
	}
}

// bytesAt is where the lengths of the lists are in a message of few rows.
func bytesAt(m []byte) int {
	n := int(binary.LittleEndian.Uint32(m[88:]))
	return (104 + 4*n + 7) &^ 7
}

// FuzzFarMessages: no message breaks a buffer, or touches the rows of others.
func FuzzFarMessages(f *testing.F) {
	seed := new(alone)
	f.Add([]byte{}, false)
	f.Add(seed.rowsMessage(0, 0, 0), false)
	f.Add(seed.rowsMessage(0, 0, 0), true)
	f.Add(append(wordsMessage(1<<16, 0, 0), wordsMessage(1<<16, 1<<16|2, 1<<16|1)...), true)
	f.Fuzz(func(t *testing.T, all []byte, deterministic bool) {
		a := newAlone(t, deterministic)
		defer a.end()
		a.send(wordsMessage(1<<16, 0, 0)) // so that it sends, and has rows of its own
		_ = a.p.Wait(ep.PhaseDone, 0)
		for len(all) > 0 {
			n := min(len(all), 40)
			if all[0]&1 == 0 {
				n = min(len(all), 1<<12)
			}
			msg := append([]byte(nil), all[:n]...)
			if all = all[n:]; len(msg) >= 16 {
				msg[0], msg[2], msg[3], msg[4], msg[5] = 1, 1, 0, 1, 0
			}
			a.send(msg)
		}
		require.NotZero(t, a.bufs[0].Members(), "the buffer has failed")
		err := a.p.Wait(ep.PhaseDone, 0)
		require.True(t, err == nil || err == ep.ErrInProgress || errors.Is(err, ep.ErrMismatch), "%v", err)
	})
}

// TestFarCloseLeavesNothing: the goroutine that takes messages ends.
func TestFarCloseLeavesNothing(t *testing.T) {
	useHosts(t, twoHosts)
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	w.exchangeAll(small, 0b11)
	for _, b := range w.bufs {
		require.NoError(t, b.Close())
		require.NoError(t, b.Close())
	}
	stacks := make([]byte, 1<<20)
	require.NotContains(t, strings.ReplaceAll(string(stacks[:runtime.Stack(stacks, true)]), "\n", " "), "servePump")
}
