package cpu_test

import (
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
)

// changedDomain shows where the latest message lies, to the code that changes it.
type changedDomain struct {
	domain.Domain
	remote *changedRemote
}

func (d *changedDomain) Remote() domain.Remote { return d.remote }

// AddSlab makes a slab where a look at what remote sources have announced comes between the check of
// a message and the copy that waits for its places.
func (d *changedDomain) AddSlab(n int64) (int, domain.Segment, error) {
	id, slab, err := d.Domain.AddSlab(n)
	return id, &changedSlab{slab, d.remote, 1 - d.Rank()}, err
}

type changedSlab struct {
	domain.Segment
	remote *changedRemote
	source int
}

func (s *changedSlab) Word(off int64) *atomic.Uint64 {
	if off == layout.Announced(s.source) {
		s.remote.overwrite(s.remote.listsBytes())
	}
	return s.Segment.Word(off)
}

// changedRemote is what a sender can write to that has sent a message: the latest that was not
// released.
type changedRemote struct {
	domain.Remote
	latest  []byte
	rowSize int
	changed atomic.Int64
}

func (f *changedRemote) Next(rank int) []byte {
	if msg := f.Remote.Next(rank); msg != nil {
		f.latest = msg
		return msg
	}
	return nil
}

func (f *changedRemote) Release(rank int) {
	f.latest = nil
	f.Remote.Release(rank)
}

// overwrite changes the beginning of a message with rows.
func (f *changedRemote) overwrite(n int) {
	if len(f.latest) <= 100 {
		return // words
	}
	for i := range f.latest[:n] {
		f.latest[i] = 0xff
	}
	f.changed.Add(1)
}

// listsBytes is where the rows begin, which are data, and which no check tells from others.
func (f *changedRemote) listsBytes() int {
	if len(f.latest) <= 100 || f.latest[0] == 0xff {
		return 0
	}
	return len(f.latest) - f.rowSize*int(binary.LittleEndian.Uint32(f.latest[88:]))
}

// changingKernels overwrite a message after they have stored its rows: its lists were
// checked, and are used afterwards.
type changingKernels struct {
	device.Kernels
	remote *changedRemote
}

func (k *changingKernels) Place(batch *device.PlaceBatch) {
	k.Kernels.Place(batch)
	k.remote.overwrite(len(k.remote.latest))
}

// TestMessagesThatChange: a sender that writes to a message once more changes nothing of
// what was checked. With deterministic order it does so before the message is copied into the
// reorder buffer, else after its rows are stored.
func TestMessagesThatChange(t *testing.T) {
	useHosts(t, hostPlacements[0].of)
	for _, c := range []struct{ preReduce, deterministic bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		s := shape{ranks: 2, maxTokens: 8, hidden: 64, experts: 4, topk: 3, preReduce: c.preReduce}
		w := &world{t: t, doms: newDomains(2, rankset.Of(0, 1)), bufs: make([]*cpu.Buffer, 2), deterministic: c.deterministic}
		remotes := make([]*changedRemote, 2)
		for r, dom := range w.doms {
			remotes[r] = &changedRemote{Remote: dom.Remote(), rowSize: s.hidden * 2}
			kern := &changingKernels{kernels.NewReference(), remotes[r]}
			var err error
			w.bufs[r], err = cpu.New(&changedDomain{dom, remotes[r]}, kern, ep.Config{NumBytes: 16 << 20, Deterministic: c.deterministic})
			require.NoError(t, err)
			t.Cleanup(func() { _ = w.bufs[r].Close() })
		}
		for i := range 6 {
			ins := inputs(r2(i), s, uniform)
			w.each(func(r int) error { return w.roundTrip(r, s, ins) })
		}
		for _, f := range remotes {
			require.NotZero(t, f.changed.Load())
		}
		for _, b := range w.bufs {
			require.Zero(t, b.Counters().NumMessagesDropped)
		}
	}
}

// TestMutationsOfMessagesThatChange: the test above sees these mistakes.
func TestMutationsOfMessagesThatChange(t *testing.T) {
	testenv.RunMutations(t, testenv.MutationsOf([][4]string{
		{
			"lists are used where they lie", "remote_jobs.go",
			"f.lists = append(f.lists[:rowsHeadBytes], msg[rowsHeadBytes:x.scales.Off]...)", "f.lists = msg[:x.scales.Off:x.scales.Off]",
		},
		{
			"a piece is copied once more after its check", "remote_receive.go",
			"copy(kept[copy(kept, b.remote.lists):], msg[x.scales.Off:])", "copy(kept, msg)",
		},
	}, testenv.Mutation{Args: []string{"-run", "^TestMessagesThatChange$"}}))
}
