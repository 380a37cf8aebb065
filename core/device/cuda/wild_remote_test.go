package cuda

import (
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport/fake"
)

// nextMessage waits for the next message of a remote rank, which stays where it has come, and
// returns it and the words that say where and how long it is.
func (o *office) nextMessage(from int) (at uintptr, mail []uint64) {
	mail = o.host[1].Words()[8*from:][:8]
	const came, place = 3, 4
	eventually(o.g.t.(*testing.T), fmt.Sprintf("a message of rank %d", from), func() bool { return atomic.LoadUint64(&mail[came]) != 0 })
	return uintptr(o.box.Receive[from] + mail[place]), mail
}

func (o *office) head(from int) *remoteHead {
	at, _ := o.nextMessage(from)
	return dl.At[remoteHead](at)
}

// withMessage has rank 1 send its rows, or counts, which rank 0 has not looked at yet.
func withMessage(t *testing.T, flags protocol.Flags) (*group, *op, *office) {
	emulate(t)
	g, o, _ := smallIn(t, 2, flags)
	for i := range o.ids[1] {
		o.ids[1][i] = int64(i % 2) // all of rank 1's rows are for rank 0
	}
	offices := g.putOnHosts(fake.New(fake.Config{Seed: 1}), mailing{
		hostOf: hosts(2, 1), ringBytes: 1 << 14, messageBytes: 1 << 13, length: 16,
	})
	require.NoError(t, g.ranks[1].Send(&o.calls[1]))
	return g, o, offices[0]
}

// goesOnWithout ends the operation of rank 0 when rank 1 is taken out.
func (g *group) goesOnWithout(o *op) {
	g.lose(1, 0)
	g.lose(1, 1)
	g.sync()
	require.Zero(g.t, g.ranks[0].report().Error, "%v", g.ranks[0].Failure())
	require.Equal(g.t, []int32{1, 0}, o.active[0])
	o.forget(1)
	g.goesOn(o, 1)
}

var rowForms = map[string]protocol.Flags{"usual": 0, "in order": protocol.FlagOrdered, "flat": flat}

// wildHeads are messages that no rank sends.
var wildHeads = map[string]func(h *remoteHead, mail []uint64){
	"rows":         func(h *remoteHead, _ []uint64) { h.Rows = math.MaxUint64 },
	"more rows":    func(h *remoteHead, _ []uint64) { h.Rows, h.Total = 1<<20, 1<<20 },
	"total":        func(h *remoteHead, _ []uint64) { h.Total = h.Rows - 1 },
	"first":        func(h *remoteHead, _ []uint64) { h.First = math.MaxUint64 - h.Rows + 1 },
	"first behind": func(h *remoteHead, _ []uint64) { h.First = h.Total + 1 },
	"kind":         func(h *remoteHead, _ []uint64) { h.Kind = 77 },
	"no kind":      func(h *remoteHead, _ []uint64) { h.Kind = 0 },
	"number":       func(h *remoteHead, _ []uint64) { h.Kind, h.Number = 4, 1<<15 }, // MW_REMOTE_RELEASED
	"outputs":      func(h *remoteHead, _ []uint64) { h.Kind, h.Rows, h.Total = 2, 1<<40, 1<<40 },
	"no combine":   func(h *remoteHead, _ []uint64) { h.Kind, h.Rows, h.Total, h.Number = 2, 0, 0, math.MaxUint64 },
	"short":        func(_ *remoteHead, mail []uint64) { mail[5] = uint64(remoteHeadBytes) - 8 },
	"no counts":    func(_ *remoteHead, mail []uint64) { mail[5] = uint64(remoteHeadBytes) },
}

// ofRows are those of wildHeads that a message without rows cannot be.
var ofRows = []string{"rows", "more rows", "total", "first", "first behind"}

// TestWildMessages: a message that makes no sense costs its sender its membership, and the
// receiver nothing.
func TestWildMessages(t *testing.T) {
	for form, flags := range rowForms {
		for name, change := range wildHeads {
			if flags&protocol.FlagOrdered != 0 && slices.Contains(ofRows, name) {
				continue // the first message has counts alone
			}
			t.Run(form+"/"+name, func(t *testing.T) {
				g, o, office := withMessage(t, flags)
				h := office.head(1)
				_, mail := office.nextMessage(1)
				change(h, mail)
				g.starts(o, 0)
				mustWild(t, g.ranks[0], 1, protocol.WildHead)
				if w, _ := g.ranks[0].Wild(1); name == "short" {
					require.EqualValues(t, remoteHeadBytes-8, w.held, "the head was read")
				}
				g.goesOnWithout(o)
			})
		}
	}
}

// TestWildMessageCounts: so does one that counts more rows than its sender can have.
func TestWildMessageCounts(t *testing.T) {
	for form, flags := range rowForms {
		for _, n := range []uint32{7, 1 << 31, math.MaxUint32} { // num_max_tokens_per_rank is 6
			t.Run(fmt.Sprintf("%s/%d", form, n), func(t *testing.T) {
				g, o, office := withMessage(t, flags)
				at, _ := office.nextMessage(1)
				*dl.At[uint32](at + uintptr(remoteHeadBytes)) = n
				g.starts(o, 0)
				mustWild(t, g.ranks[0], 1, protocol.WildCounts)
				g.goesOnWithout(o)
			})
		}
	}
}

// TestNothingCountsBehindAWildMessage: pieces that come behind it make no rows of its
// sender count, also when the last one has come.
func TestNothingCountsBehindAWildMessage(t *testing.T) {
	emulate(t)
	g, o, _ := narrow(t, rngOf(testenv.Seed(t), 98, 0), hosts(2, 1), 0)
	var active []int32
	o.calls[0].Active, active = tensor[int32](g.ranks[0], 2)
	active[0], active[1] = 1, 1
	require.NoError(t, g.ranks[1].Send(&o.calls[1]))
	at, _ := g.offices[0].nextMessage(1)
	*dl.At[uint32](at + uintptr(remoteHeadBytes)) = 1 << 31
	g.starts(o, 0)
	require.NoError(t, g.ranks[1].Receive(&o.calls[1]))
	g.ended(g.ranks[1], "a dispatch")
	eventually(t, "all messages are taken", func() bool {
		const each = uint64(unsafe.Sizeof(remoteRank{}))
		sent := peek[remoteRank](g, g.ranks[1].remote.private.Address()).Sent
		return sent > 2 && peek[remoteRank](g, g.ranks[0].remote.private.Address()+each).Released == sent
	})
	mustWild(t, g.ranks[0], 1, protocol.WildCounts)
	g.lose(1, 0)
	g.sync()
	require.Zero(t, g.ranks[0].report().Error, "%v", g.ranks[0].Failure())
	require.Equal(t, []int32{1, 0}, active)
}

// TestHeadsAreReadOnce: nothing of a message's head is read from where its sender can
// still write, after it was read once.
func TestHeadsAreReadOnce(t *testing.T) {
	emu, seed := emulate(t), testenv.Seed(t)
	emu.SpoilReads(t)
	for form, flags := range splitForms {
		rng := rngOf(seed, 97, flags)
		emu.Schedule(rng.Uint64(), 16, 12)
		t.Run(form, func(t *testing.T) {
			g, o, slabs := narrow(t, rng, hosts(2, 1), flags)
			g.inTwoPhases(t, o, slabs)
		})
	}
}
