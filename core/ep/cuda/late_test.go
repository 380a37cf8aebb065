package cuda_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
)

// drowsy is a domain with a watcher that sleeps for as long as the test likes, as one
// that gets no processor does.
type drowsy struct {
	domain.Domain
	mu     sync.Mutex
	may    *sync.Cond
	held   bool
	asleep bool
	looks  int
}

func newDrowsy(d domain.Domain) *drowsy {
	w := &drowsy{Domain: d}
	w.may = sync.NewCond(&w.mu)
	return w
}

func (d *drowsy) Sleep(ticket uint32, period time.Duration) {
	d.mu.Lock()
	d.looks++
	d.asleep = true
	d.may.Broadcast()
	for d.held {
		d.may.Wait()
	}
	d.asleep = false
	d.mu.Unlock()
	d.Domain.Sleep(ticket, period)
}

// hold returns when the watcher sleeps, for as long as that is wanted.
func (d *drowsy) hold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = true
	for !d.asleep {
		d.may.Wait()
	}
}

func (d *drowsy) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = false
	d.may.Broadcast()
}

// await returns once the watcher has looked n times more.
func (d *drowsy) await(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for end := d.looks + n; d.looks < end; {
		d.may.Wait()
	}
}

// patient kernels wait an hour for a host that does not take what it is told.
var patient = cudatest.Build{Defines: []string{"MW_HOST_GRACE_NS=3600000000000"}}

// newDrowsyGroup makes two connected ranks; rank 0's watcher is the drowsy one.
func newDrowsyGroup(t *testing.T) ([]*rank, *drowsy) {
	emu := patient.Emulate(t)
	emu.Schedule(testenv.Seed(t), 16, 8)
	doms := inproc.New(2, layout.ControlBytes)
	slow := newDrowsy(doms[0])
	group := []*rank{newRank(t, emu, slow, configOf(t, 2)), newRank(t, emu, doms[1], configOf(t, 2))}
	t.Cleanup(func() {
		slow.release()
		closeAll(group)
	})
	for _, r := range group {
		require.NoError(t, r.Connect(connectIn))
	}
	return group, slow
}

// TestLateLapses: a rank that was late, and came before the suspicion was over, has
// its whole time for what is waited for next, though the device waited for it
// whenever the watcher looked.
func TestLateLapses(t *testing.T) {
	group, slow := newDrowsyGroup(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 41))
	first, second := []*op{newOp(group[0], rng), newOp(group[1], rng)}, []*op{newOp(group[0], rng), newOp(group[1], rng)}
	first[0].args.Timeout, second[0].args.Timeout = time.Nanosecond, time.Hour
	slow.hold()
	first[0].dispatch()
	second[0].dispatch()
	group[0].awaitWait(0, 1, 0)
	was := group[0].DeviceWait(1)
	first[1].dispatch()
	group[0].awaitWait(1, 1, was)
	slow.release()
	slow.await(100) // a suspicion takes a tenth of that
	require.EqualValues(t, rankset.Of(0, 1), group[0].Members())
	second[1].dispatch()
	for _, o := range second {
		o.combine()
	}
	for _, o := range second {
		o.r.sync()
		o.check()
		require.NoError(t, o.r.Err())
		require.Equal(t, []int32{1, 1}, o.r.active.values)
	}
}

// awaitWait returns when the device waits for a rank in the operation of that
// number, and not any more in the wait of that name.
func (r *rank) awaitWait(op uint64, rank int, not uint64) {
	require.Eventually(r.t, func() bool {
		wait := r.DeviceWait(rank)
		return r.DeviceOps() == op+1 && wait != 0 && wait != not
	}, connectIn, 100*time.Microsecond)
}
