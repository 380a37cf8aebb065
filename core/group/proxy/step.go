package proxy

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// round is one run of a proxy, from Start to Stop: one generation of the queue.
// It is its goroutine's.
type round struct {
	p          *Proxy
	remote     domain.RemotePlaces
	generation uint64 // in the upper bits
	ranks      [rankset.MaxRanks]rankState
	look       rankset.Set // ranks for which there may be room or a message
	taken      [64]fifo.Descriptor
}

// rankState is what is under way with one rank.
type rankState struct {
	leased, came uint64 // numbers of the latest lease and message
	bytes        int64  // of the lease; 0: there is none
	shown        bool   // the message was not released yet
}

// step does what there is to do, and reports whether there was anything. After
// an error nothing more is to be done.
func (r *round) step() (some bool, err error) {
	asked := r.p.asked.Load() // before the look that it asks for
	n := r.p.cfg.Queue.Take(r.taken[:])
	if n == 0 {
		r.p.settled.Store(asked) // what was taken before is done
	}
	for i := range n {
		if err := r.serve(&r.taken[i]); err != nil {
			return true, err
		}
	}
	if r.p.rung.Swap(false) {
		r.look = r.remote.Ranks()
	}
	for rank := range r.look.All() {
		leased := r.lease(rank)
		shown, err := r.show(rank)
		if some = some || leased || shown; err != nil {
			return true, err
		}
	}
	r.look = rankset.Set{}
	return some || n > 0, nil
}

// serve does what a descriptor asks for.
func (r *round) serve(d *fifo.Descriptor) error {
	kind, rank := d.What&(1<<rankShift-1), d.What>>rankShift
	if rank >= uint64(r.p.cfg.NumRanks) {
		return fmt.Errorf("proxy: a descriptor for rank %d of %d", rank, r.p.cfg.NumRanks)
	}
	s := &r.ranks[rank]
	switch {
	case kind == protocol.RemoteSend && s.bytes > 0 && d.Number == r.generation|s.leased && d.Bytes-1 < uint64(s.bytes):
		s.bytes = 0
		r.post(int(rank), int64(d.Bytes))
	case kind == protocol.RemoteRelease && s.shown && d.Number == r.generation|s.came:
		s.shown = false
		r.remote.Release(int(rank))
		r.p.released.Add(1)
	default:
		return fmt.Errorf("proxy: no descriptor of kind %d, rank %d, number %#x with %d bytes can be now", kind, rank, d.Number, d.Bytes)
	}
	r.look = r.look.With(int(rank))
	return nil
}

// post sends a message. One that cannot be sent is lost with its rank; the code that
// knows that reports it.
func (r *round) post(rank int, n int64) {
	if r.remote.Post(rank, n) != nil {
		r.p.dropped.Add(1)
		return
	}
	r.p.sent.Add(1)
}

func (r *round) mail(rank int) []uint64 { return r.p.cfg.Mail[mailWords*rank:][:mailWords] }

// lease gives the device room for a message to a rank, if it has none and there
// is some; else it says so. A rank that is lost has none: waits for it end by the
// members' word.
func (r *round) lease(rank int) bool {
	s := &r.ranks[rank]
	if s.bytes > 0 {
		return false
	}
	n := min(r.p.cfg.LeaseBytes, r.remote.MaxMessageBytes())
	off, err := r.remote.ReserveAt(rank, n)
	m := r.mail(rank)
	if err != nil {
		atomic.StoreUint64(&m[mailFull], r.generation|(s.leased+1))
		return false // the bell rings when there is room
	}
	s.bytes = n
	s.leased++
	atomic.StoreUint64(&m[mailLeaseAt], uint64(off))
	atomic.StoreUint64(&m[mailLeaseBytes], uint64(n))
	atomic.StoreUint64(&m[mailLease], r.generation|s.leased)
	return true
}

var errFlush = errors.New("proxy: making a message visible to the device")

// show tells the device of the oldest message of a rank, if it has released
// the one before.
func (r *round) show(rank int) (bool, error) {
	s := &r.ranks[rank]
	if s.shown {
		return false, nil
	}
	off, n := r.remote.NextAt(rank)
	if n == 0 {
		return false, nil
	}
	if flush := r.p.cfg.Flush; flush != nil {
		if err := flush(); err != nil {
			return false, fmt.Errorf("%w: %w", errFlush, err)
		}
	}
	s.shown = true
	s.came++
	m := r.mail(rank)
	atomic.StoreUint64(&m[mailCameAt], uint64(off))
	atomic.StoreUint64(&m[mailCameBytes], uint64(n))
	atomic.StoreUint64(&m[mailCame], r.generation|s.came)
	return true, nil
}
