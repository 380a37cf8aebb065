package cpu_test

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

// alone is rank 0 with a buffer, in an operation, and what rank 1 can send it.
type alone struct {
	*world
	remote domain.Remote
	d      dispatched
	in     input
	p      *cpu.Pending
	c      *cpu.Pending // its combine
	out    []byte
}

// disagreeing is a domain where the others do not agree at once that a rank is out: so the
// sender of a wrong message stays, and the messages behind it are looked at as well.
type disagreeing struct {
	domain.Domain
	asks atomic.Int64 // before they agree
}

func (d *disagreeing) Members() domain.MemberWord { return slowMembers{d.Domain.Members(), d} }

type slowMembers struct {
	domain.MemberWord
	d *disagreeing
}

func (m slowMembers) CompareAndSwap(old, next uint64) bool {
	return m.d.asks.Add(-1) < 0 && m.MemberWord.CompareAndSwap(old, next)
}

func newAlone(t testing.TB, deterministic, preReduce bool) *alone {
	return newAloneFor(t, math.MaxInt64, deterministic, preReduce)
}

// newAloneFor is newAlone where the others agree after so many asks.
func newAloneFor(t testing.TB, asks int64, deterministic, preReduce bool) *alone {
	overHosts = twoHosts
	defer func() { overHosts = nil }()
	a := &alone{world: &world{t: t, doms: newDomains(2, rankset.Of(0, 1)), bufs: make([]*cpu.Buffer, 2)}}
	dom := &disagreeing{Domain: a.doms[0]}
	dom.asks.Store(asks)
	b, err := cpu.New(dom, kernels.NewReference(), ep.Config{NumBytes: 16 << 20, Deterministic: deterministic})
	require.NoError(t, err)
	a.bufs[0] = b
	t.Cleanup(a.end)
	a.remote = a.doms[1].Remote()
	a.in = remoteInput(0)
	s := small
	s.preReduce = preReduce
	a.p, err = b.Dispatch(a.args(0, s, &a.in, &a.d), &a.d.res, ep.PhaseDone, 0)
	require.ErrorIs(t, err, ep.ErrInProgress)
	return a
}

// end closes the buffer, which would wait for a rank that takes nothing.
func (a *alone) end() {
	inproc.Kill(a.doms[0], 1)
	_ = a.bufs[0].Close()
}

// send posts one message and waits until it was taken.
func (a *alone) send(msg []byte) {
	for {
		to, err := a.remote.Reserve(0, int64(len(msg)))
		if err != nil {
			require.ErrorIs(a.t, err, transport.ErrWouldBlock)
			runtime.Gosched()
			continue
		}
		copy(to, msg)
		require.NoError(a.t, a.remote.Post(0, int64(len(msg))))
		break
	}
	_ = a.p.Wait(ep.PhaseDone, 0)
	for a.remote.Next(0) != nil {
		a.remote.Release(0)
	}
}

// rowsMessage is a right one: rank 1's pairInput, to rank 0.
func (a *alone) rowsMessage(preReduce bool) []byte {
	in := remoteInput(1)
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
	flags, weights := uint64(0), []float32(nil)
	if preReduce {
		flags = 1 << 7
		for t := range entries {
			weights = append(weights, float32(t))
		}
	}
	msg := make([]byte, 96)
	head(msg, 2, 1, 1, 0, 0)
	for i, v := range []uint64{1, uint64(small.maxTokens), uint64(small.hidden), uint64(small.experts), flags, uint64(small.topk), uint64(in.tokens), 0} {
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
	if preReduce {
		align(8)
	}
	for _, w := range weights {
		msg = binary.LittleEndian.AppendUint32(msg, math.Float32bits(w))
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

func controlWordsMessage(open, y, done uint64) []byte {
	msg := make([]byte, 40)
	head(msg, 1, 1, 1, 0, 0)
	for i, v := range []uint64{open, y, done} {
		binary.LittleEndian.PutUint64(msg[16+8*i:], v)
	}
	return msg
}

// TestRemoteMessages: a message made by the table in docs/wire.md is taken; one
// that is wrong anywhere is dropped, counted, and changes nothing.
func TestRemoteMessages(t *testing.T) {
	for i := range 4 {
		deterministic, preReduce := i&1 == 1, i&2 == 2
		a := newAlone(t, deterministic, !preReduce)
		good := a.rowsMessage(preReduce)
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
		put32(104, 77)                                    // a token that does not exist
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
		a.send(controlWordsMessage(1<<16, 0, protocol.Counted(0, 0, true))) // done before rows
		require.Equal(t, before+1, a.bufs[0].Counters().NumMessagesDropped)
		a.send(controlWordsMessage(1<<16, 0, 0))
		a.send(good)
		require.NoError(t, a.p.Wait(ep.PhaseDone, 5*time.Second))
		require.NoError(t, a.p.Result(&a.d.res))
		require.NoError(t, a.d.check(0, small, []input{a.in, remoteInput(1)}))
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

// FuzzRemoteMessages: no message breaks a buffer, or touches the rows of others.
// The lowest bit of a message's first byte says how much of the input it is. The
// next bit of the first message says whether our own rows are pre-reduced.
func FuzzRemoteMessages(f *testing.F) {
	seed := new(alone)
	whole := func(preReduce bool, messages ...[]byte) (all []byte) {
		for i, m := range messages {
			m[0] = 0
			if i == 0 && preReduce {
				m[0] = 2
			}
			if i < len(messages)-1 && len(m) > 40 {
				m = append(m, make([]byte, 1<<12-len(m))...) // too long, but another one follows
			}
			all = append(all, m...)
		}
		return all
	}
	f.Add([]byte{}, false)
	f.Add(seed.rowsMessage(false), false)
	for _, preReduce := range []bool{false, true} {
		f.Add(whole(preReduce, seed.rowsMessage(preReduce)), false)
		f.Add(whole(!preReduce, seed.rowsMessage(preReduce)), true)
		f.Add(whole(preReduce, outputsMessage(formOf(preReduce), 4, 0, 4)), false)
		f.Add(whole(preReduce, outputsMessage(formOf(preReduce), 3, 0, 2)), false)
	}
	f.Add(append(controlWordsMessage(1<<16, 0, 0), controlWordsMessage(1<<16, protocol.Counted(0, 1, false), protocol.Counted(0, 0, true))...), true)
	f.Fuzz(func(t *testing.T, all []byte, deterministic bool) {
		a := newAlone(t, deterministic, len(all) > 0 && all[0]&2 != 0)
		defer a.end()
		a.send(controlWordsMessage(1<<16, 0, 0)) // so that it sends, and has rows of its own
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
			a.combine()
		}
		require.NotZero(t, a.bufs[0].Members(), "the buffer has failed")
		err := a.p.Wait(ep.PhaseDone, 0)
		require.True(t, err == nil || err == ep.ErrInProgress || errors.Is(err, ep.ErrMismatch), "%v", err)
	})
}

// combine goes on with the combine, once the dispatch is done.
func (a *alone) combine() {
	if a.c == nil && a.p.Wait(ep.PhaseDone, 0) == nil {
		a.out = make([]byte, len(a.in.x))
		a.c, _ = a.bufs[0].Combine(0, combineArgs(&a.d, &a.in, a.out), ep.PhaseDone, 0)
	}
	if a.c != nil {
		_ = a.c.Wait(ep.PhaseDone, 0)
	}
}

// TestRemoteMessageThatCannotBe: a message of this epoch that no rank sends costs its sender its
// membership, with the reason, and no other rank anything. One of another epoch is dropped.
func TestRemoteMessageThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(msg []byte)
		lost  bool
	}{
		{"version", func(m []byte) { m[0] = 9 }, true},
		{"kind", func(m []byte) { m[1] = 9 }, true},
		{"slot", func(m []byte) { m[6] = 9 }, true},
		{"tokens", func(m []byte) { m[104] = 77 }, true},
		{"epoch", func(m []byte) { m[2] = 9 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			overHosts = func(int) inproc.Hosts { return inproc.Hosts{Of: []int{0, 1, 2}} }
			t.Cleanup(func() { overHosts = nil })
			s := small
			s.ranks, s.experts = 3, 6
			w := newWorld(t, 3, ep.Config{NumBytes: 16 << 20})
			ins := inputs(r2(1), s, uniform)
			w.each(func(r int) error { return w.roundTrip(r, s, ins) })
			good := new(alone).rowsMessage(false) // its first bytes fit
			c.spoil(good)
			cpu.Locked(w.bufs[1], func() { postTo0(t, w.doms[1].Remote(), good) }) // it may be sending
			require.Eventually(t, func() bool { return w.bufs[0].Counters().NumMessagesDropped == 1 }, callTimeout, time.Millisecond)
			if !c.lost {
				w.each(func(r int) error { return w.roundTrip(r, s, ins) })
				require.Zero(t, w.bufs[0].Counters().NumViolations)
				return
			}
			require.Eventually(t, func() bool { return w.bufs[2].Members() == rankset.Of(0, 2) }, callTimeout, time.Millisecond)
			require.EqualValues(t, 1, w.bufs[0].Counters().NumViolations)
			events, _ := w.bufs[0].Events(0)
			require.Contains(t, events[len(events)-1].Why, "a message of rank 1 holds")
			_, err := w.dispatch(1, s, &ins[1])
			require.ErrorIs(t, err, ep.ErrFenced)
			ins[1] = input{}
			w.some(rankset.Of(0, 2), func(r int) error {
				_, err := w.exchange(r, s, ins, callTimeout)
				return err
			})
		})
	}
}

func postTo0(t *testing.T, from domain.Remote, msg []byte) {
	to, err := from.Reserve(0, int64(len(msg)))
	require.NoError(t, err)
	copy(to, msg)
	require.NoError(t, from.Post(0, int64(len(msg))))
}

// TestWrongMessageUntilOthersAgree: where other hosts have to agree, a rank goes on to ask.
func TestWrongMessageUntilOthersAgree(t *testing.T) {
	a := newAloneFor(t, 5, false, false)
	a.send(controlWordsMessage(1<<16, 0, 0)[:39])
	require.NoError(t, a.p.Wait(ep.PhaseDone, 5*time.Second), "it waits for the sender")
	require.Equal(t, rankset.Of(0), a.bufs[0].Members())
	require.EqualValues(t, 1, a.bufs[0].Counters().NumViolations)
}

// TestMutationsOfMessages: the tests above see these mistakes.
func TestMutationsOfMessages(t *testing.T) {
	testenv.RunMutations(t, testenv.MutationsOf([][4]string{
		{"a sender of wrong messages stays", "remote.go", "\tb.remote.wild = append(b.remote.wild, v)\n\tb.violates(v)\n", "\t_ = v\n"},
		{"the reason of a loss that was agreed on is forgotten", "observe.go", "\tb.recordFound(gone, func(*ep.Loss) bool { return true })\n", ""},
		{"other hosts are not told a reason", "observe.go", "\t\tep.Explain(b.dom, rank, &loss)\n", ""},
		{"a loss that was agreed on does not count", "observe.go", "\t\t\tb.lost.Add(1)\n", ""},
		{"a loss that two calls find counts twice", "fence.go", "\t\tblamed = blamed.And(w.b.known)\n", ""},
		{"others are asked once", "remote.go", "\tb.fenceWildSenders()\n", ""},
		{"a message of an older epoch costs its sender", "remote.go", " || (ok && h.epoch != uint16(b.epoch)) {", " || (ok && h.rank != r) {"},
	}, testenv.Mutation{Args: []string{"-run", "^(TestRemoteMessageThatCannotBe|TestWrongMessageUntilOthersAgree|TestReasonOfAgreed(Loss|Timeout)|TestLossIsCountedOnce)$"}}))
}
