package proxy

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/transport"
)

// round is one run of a proxy, from Start to Stop: one generation of the queue.
// It is its goroutine's.
type round struct {
	p          *Proxy
	far        transport.FarPlaces
	generation uint64 // in the upper bits
	ranks      [transport.MaxRanks]rankState
	look       uint64 // ranks for which there may be room or a message
	taken      [64]fifo.Descriptor
}

// rankState is what is under way with one rank.
type rankState struct {
	lent, came uint64 // numbers of the latest loan and message
	bytes      int64  // of the loan; 0: there is none
	shown      bool   // the message was not given back yet
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
		r.look = r.far.Ranks()
	}
	for rest := r.look; rest != 0; rest &= rest - 1 {
		rank := bits.TrailingZeros64(rest)
		lent := r.lend(rank)
		shown, err := r.show(rank)
		if some = some || lent || shown; err != nil {
			return true, err
		}
	}
	r.look = 0
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
	case kind == kindSend && s.bytes > 0 && d.Number == r.generation|s.lent && d.Bytes-1 < uint64(s.bytes):
		s.bytes = 0
		r.post(int(rank), int64(d.Bytes))
	case kind == kindRelease && s.shown && d.Number == r.generation|s.came:
		s.shown = false
		r.far.Release(int(rank))
		r.p.released.Add(1)
	default:
		return fmt.Errorf("proxy: no descriptor of kind %d, rank %d, number %#x with %d bytes can be now", kind, rank, d.Number, d.Bytes)
	}
	r.look |= 1 << rank
	return nil
}

// post sends a message. One that cannot be sent is lost with its rank: whoever
// knows that says so.
func (r *round) post(rank int, n int64) {
	if r.far.Post(rank, n) != nil {
		r.p.dropped.Add(1)
		return
	}
	r.p.sent.Add(1)
}

func (r *round) mail(rank int) []uint64 { return r.p.cfg.Mail[mailWords*rank:][:mailWords] }

// lend gives the device room for a message to a rank, if it has none and there
// is some; else it says so. A rank that is lost has none: waits for it end by the
// members' word.
func (r *round) lend(rank int) bool {
	s := &r.ranks[rank]
	if s.bytes > 0 {
		return false
	}
	n := min(r.p.cfg.LoanBytes, r.far.MaxMessageBytes())
	off, err := r.far.ReserveAt(rank, n)
	m := r.mail(rank)
	if err != nil {
		atomic.StoreUint64(&m[mailFull], r.generation|(s.lent+1))
		return false // the bell rings when there is room
	}
	s.bytes = n
	s.lent++
	atomic.StoreUint64(&m[mailLentAt], uint64(off))
	atomic.StoreUint64(&m[mailLentBytes], uint64(n))
	atomic.StoreUint64(&m[mailLent], r.generation|s.lent)
	return true
}

var errFlush = errors.New("proxy: making a message visible to the device")

// show tells the device of the oldest message of a rank, if it has given back
// the one before.
func (r *round) show(rank int) (bool, error) {
	s := &r.ranks[rank]
	if s.shown {
		return false, nil
	}
	off, n := r.far.NextAt(rank)
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
