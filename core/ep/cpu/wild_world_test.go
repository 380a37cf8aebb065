package cpu_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/shm"
)

// wildWorld is ranks with real shared memory, mapped once by each of them. The test writes to
// this memory by the files, as another process of the user would.
type wildWorld struct {
	*world
	memory  []*os.File // by rank
	members *os.File
	outside atomic.Bool // rows were about to be written outside of a slab
	timeout time.Duration
}

// wildMemory is where words are overwritten.
type wildMemory interface {
	io.ReaderAt
	io.WriterAt
}

// Where things lie in a rank's file: the table of slabs, then the control region.
const (
	wildSleepers = 128
	wildHolder   = 256
	wildTable    = 4096
	wildControl  = 20 << 10
)

const wildSlots = 2

func newWildWorld(t testing.TB, ranks int, cfg ep.Config) *wildWorld {
	w := &wildWorld{world: &world{t: t, bufs: make([]*cpu.Buffer, ranks)}, timeout: wildTimeout}
	listeners, all := make([]*shm.Listener, ranks), make([][]byte, ranks)
	for r := range ranks {
		l, err := shm.Open(shm.Config{Rank: r, NumRanks: ranks, ControlBytes: layout.ControlBytes, ABIVersion: 1})
		require.NoError(t, err)
		listeners[r], all[r] = l, l.Metadata()
	}
	var wg sync.WaitGroup
	errs := make([]error, ranks)
	for r, l := range listeners {
		wg.Go(func() { errs[r] = w.join(r, l, all, cfg) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	w.openFiles(t)
	return w
}

func (w *wildWorld) join(r int, l *shm.Listener, all [][]byte, cfg ep.Config) error {
	dom, err := l.Connect(all, callTimeout)
	if err != nil {
		return err
	}
	kern, err := kernels.New(kernels.Widest)
	if err == nil {
		w.bufs[r], err = cpu.New(dom, &watchedKernels{kern, w}, cfg)
	}
	return err
}

// watchedKernels look where rows go before they go there: outside of a slab lies memory
// that may be mapped.
type watchedKernels struct {
	device.Kernels
	w *wildWorld
}

func (k *watchedKernels) Place(batch *device.PlaceBatch) {
	for _, job := range batch.Jobs {
		if rows := batch.Targets[job.Target].RowsPerExpert; job.Pos < 0 || int(job.Pos) >= rows {
			k.w.outside.Store(true)
			return
		}
	}
	k.Kernels.Place(batch)
}

func (w *wildWorld) close() {
	for _, f := range append(w.memory, w.members) {
		_ = f.Close() // of ranks that share no memory: nil
	}
	for _, b := range w.bufs {
		_ = b.Close()
	}
}

// openFiles finds the memory of the ranks among this process's descriptors: worlds that
// were closed have none any more.
func (w *wildWorld) openFiles(t testing.TB) {
	w.memory = make([]*os.File, len(w.bufs))
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range entries {
		path := filepath.Join("/proc/self/fd", e.Name())
		name, _ := os.Readlink(path)
		to := &w.members
		if rest, is := strings.CutPrefix(name, "/memfd:moewire-rank-"); is {
			to = &w.memory[int(rest[0]-'0')]
		} else if !strings.HasPrefix(name, "/memfd:moewire-members") {
			continue
		}
		if *to == nil {
			*to, err = os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
		}
	}
	for _, f := range append(w.memory, w.members) {
		require.NotNil(t, f)
	}
}

func load(f wildMemory, off int64) uint64 {
	var b [8]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		panic(err) // the offset is ours
	}
	return binary.LittleEndian.Uint64(b[:])
}

func store(f wildMemory, off int64, v uint64) {
	if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, v), off); err != nil {
		panic(err)
	}
}

// slabAt is where the slab lies that rank r has open in a slot.
func (w *wildWorld) slabAt(r, slot int) int64 {
	id := protocol.DetailOf(load(w.memory[r], wildControl+layout.Open(slot)))
	return int64(load(w.memory[r], wildTable+int64(id)*16))
}

// outcomes of what ranks did: an error, and the ranks that their results lack.
type wildOutcome struct {
	err       error
	disagreed error  // of ranks that disagree; the rank has gone on
	lacks     uint64 // ranks missing in any mask
}

// wildRound is a dispatch and a combine, with results compared with the oracle, whichever
// ranks are out. holes: counters may be too high.
func (w *wildWorld) wildRound(rank int, s shape, ins []input, holes bool) (lacks uint64, err error) {
	d := new(dispatched)
	a := w.args(rank, s, &ins[rank], d)
	a.ActiveRanks, a.Timeout = ones(s.ranks), w.timeout
	if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
		return 0, err
	}
	all := append([]input(nil), ins...)
	for r, on := range a.ActiveRanks {
		if on == 0 {
			all[r] = input{}
			lacks |= 1 << r
		}
	}
	wrong := d.checkAmong(rank, s, all, holes || lacks != 0) // goes on, as a caller would
	if s.fp8 && wrong == nil {
		wrong = d.checkCast(rank, s, all)
	}
	d.computeAny(rank, s)
	c := combineArgs(d, &ins[rank], make([]byte, ins[rank].tokens*s.hidden*2))
	c.TopK, c.ActiveRanks, c.Timeout = s.topk, ones(s.ranks), w.timeout
	if _, err := w.bufs[rank].Combine(d.res.Op, c, ep.PhaseDone, -1); err != nil {
		return lacks, err
	}
	for r, on := range c.ActiveRanks {
		if on == 0 {
			lacks |= 1 << r
		}
	}
	dead := func(id int64) bool { return c.ActiveRanks[id/int64(s.experts/s.ranks)] == 0 }
	if string(c.Out) != string(wantCombineAny(&ins[rank], s, dead)) {
		return lacks, fmt.Errorf("%w: after combine, with the mask %v", errWrong, c.ActiveRanks)
	}
	if wrong != nil {
		return lacks, fmt.Errorf("%w: after dispatch: %w", errWrong, wrong)
	}
	return lacks, nil
}

// computeAny is compute for bf16 and fp8.
func (d *dispatched) computeAny(rank int, s shape) {
	if s.fp8 {
		d.computeFP8(rank, s)
		return
	}
	d.compute(rank, s)
}

func wantCombineAny(in *input, s shape, lost func(id int64) bool) []byte {
	if s.fp8 {
		return wantCombineFP8(in, s, lost)
	}
	return s.want(in, lost)
}

var errWrong = errors.New("differs from the oracle")

// wildTimeout is long for a machine that does other things, and short beside a hang.
const wildTimeout = 5 * time.Second

// checkAmong is check for sources of which some were lost, with inputs of none: they may
// have left holes.
func (d *dispatched) checkAmong(rank int, s shape, ins []input, holes bool) error {
	if !holes {
		return d.check(rank, s, ins)
	}
	counts := append([]int32(nil), d.counts...)
	defer func() { d.counts = counts }()
	for e := range d.counts {
		total := int32(0)
		for src := range s.ranks {
			total += int32(d.layout[e*s.ranks+src] & (1<<32 - 1))
		}
		if d.counts[e] < total || int(d.counts[e]) > s.ranks*s.maxTokens {
			return fmt.Errorf("expert %d: count %d of %d rows", e, d.counts[e], total)
		}
		counts[e], d.counts[e] = d.counts[e], total
	}
	return d.check(rank, s, ins)
}
