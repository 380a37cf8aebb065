package cuda

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// pushArgs is emulator_push_args.
type pushArgs struct {
	common             common
	words, next, num   uint64
	rounds, pushedHere uint64
}

// pusher is a device with threads that push descriptors.
type pusher struct {
	*member
	g      *group
	host   *HostMemory
	queue  *fifo.Queue
	next   []uint64 // the device's word
	pushed []uint64 // by thread
	args   pushArgs
	f      libcuda.Function
}

func newPusher(t *testing.T, emu *cudatest.Driver, length, threads int, timeoutNs int64) *pusher {
	slab, err := layout.Of(layout.Shape{MaxTokens: 1, Hidden: 128, NumExperts: 1, NumRanks: 1})
	require.NoError(t, err)
	g := newGroup(t, 1, 1, slab.SizeBytes)
	p := &pusher{member: g.ranks[0], g: g}
	p.host, err = g.d.AllocHost(uint64(fifo.Words(length)) * 8)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.host.Close()) })
	p.queue, err = fifo.New(p.host.Words(), length)
	require.NoError(t, err)
	p.args = pushArgs{common: p.base, words: p.host.Address(), num: uint64(length)}
	p.args.common.TimeoutNs = timeoutNs
	p.args.next, p.next = tensor[uint64](p.member, 1)
	p.args.pushedHere, p.pushed = tensor[uint64](p.member, threads)
	p.next[0] = p.queue.Restart()
	g.must(func() error { p.f, err = emu.ModuleFunction(g.d.modules[0], "emulator_push"); return err })
	return p
}

// launch has so many blocks of 16 threads push, each so often.
func (p *pusher) launch(blocks uint32, rounds uint64) {
	p.args.rounds = rounds
	p.g.must(func() error {
		grid := libcuda.Grid{Blocks: blocks, Threads: 16}
		return p.calls.Launch(p.f, grid, p.stream, unsafe.Pointer(&p.args), unsafe.Sizeof(p.args))
	})
}

// TestPush: what threads of a device push comes once each, whole, and in order
// for each of them, however short the queue is.
func TestPush(t *testing.T) {
	emu := emulate(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 31))
	for _, length := range []int{1, 8, 64} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			emu.Schedule(rng.Uint64(), 240, 2) // others nearly always go first
			push(t, newPusher(t, emu, length, 16*pushBlocks, -1))
		})
	}
}

const pushBlocks = 2

func push(t *testing.T, p *pusher) {
	const rounds = 8
	p.launch(pushBlocks, rounds)
	got, out := make([]uint64, 16*pushBlocks), make([]fifo.Descriptor, 3)
	end := time.Now().Add(time.Minute)
	for taken := 0; taken < len(got)*rounds; {
		n := p.queue.Take(out)
		for _, d := range out[:n] {
			thread := d.What >> 8
			require.Less(t, thread, uint64(len(got)))
			require.Equal(t, fifo.Descriptor{What: thread << 8, Bytes: thread ^ got[thread], Number: got[thread]}, d)
			got[thread]++
		}
		if taken += n; n == 0 {
			if time.Now().After(end) {
				p.queue.End(9) // so that the device ends, too
				t.Fatal("something never comes")
			}
			runtime.Gosched()
		}
	}
	p.g.sync()
	require.Zero(t, p.queue.Take(out))
	require.Equal(t, got, p.pushed)
	require.Zero(t, p.report().Error)
}

// TestPushEnds: a thread that waits for room stops when the queue has ended, when this
// rank is out, and when the host does nothing for too long; and says why.
func TestPushEnds(t *testing.T) {
	emu := emulate(t)
	emu.Schedule(testenv.Seed(t), 64, 2)
	for name, c := range map[string]struct {
		timeoutNs int64
		act       func(p *pusher)
		kind      FailureKind
		detail    uint64
	}{
		"over":       {-1, func(p *pusher) { p.queue.End(9) }, FailedProxy, 9},
		"fenced":     {-1, func(p *pusher) { p.SetMembers(1 << protocol.EpochShift) }, FailedFenced, 0},
		"no host":    {1000, func(*pusher) {}, FailedNoHost, 0},
		"generation": {-1, func(p *pusher) { p.queue.Restart() }, FailedProxy, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPusher(t, emu, 4, 16, c.timeoutNs)
			p.launch(1, 3)
			eventually(t, "the queue is full", func() bool {
				return p.host.Words()[8+3*4] != 0
			})
			c.act(p)
			p.g.sync()
			f := p.Failure()
			require.Equal(t, c.kind, f.Kind)
			require.Equal(t, c.detail, f.Detail[0])
			sum := uint64(0)
			for _, n := range p.pushed {
				sum += n
			}
			out := make([]fifo.Descriptor, 5)
			if name != "generation" {
				require.EqualValues(t, 4, sum)
				require.Equal(t, 4, p.queue.Take(out))
			}
		})
	}
}
