package fabric

import (
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// poller is the goroutine that polls the carrier.
type poller struct {
	quit  atomic.Bool
	ended chan struct{}
	conns []*conn // of refillAll
	last  uint32  // of pairInOrder
}

// pollAtLeast bounds a sleep: nothing depends on it.
const pollAtLeast = 100 * time.Millisecond

func (q *poller) start(f *Fabric) {
	q.ended = make(chan struct{})
	safego.Go("fabric poller", func() {
		defer close(q.ended)
		if err := q.run(f); err != nil {
			f.breakDown(err)
		}
	}, f.breakDown)
}

func (q *poller) run(f *Fabric) error {
	done := make([]transport.Completion, 64)
	handle := f.handle
	for !q.quit.Load() {
		n, err := f.store.Poll(done, handle)
		if err != nil {
			return err
		}
		if f.refill.Swap(false) {
			f.refillAll()
		}
		if n == 0 {
			if err := f.cfg.Transport.Wait(pollAtLeast); err != nil {
				return err
			}
		}
	}
	return nil
}

// stop ends the poller and waits for it.
func (q *poller) stop(f *Fabric) {
	q.quit.Store(true)
	f.cfg.Transport.Wake()
	<-q.ended
}

// handle takes completions to the operations that they are of.
func (f *Fabric) handle(done []transport.Completion) {
	for i := range done {
		if isWindow(done[i].ID) {
			f.arrived(&done[i])
		} else {
			f.completed(&done[i])
		}
	}
}

// completed takes note of the end of a slice.
func (f *Fabric) completed(done *transport.Completion) {
	slot := slotOf(done.ID)
	if slot >= len(f.work) {
		f.strays.Add(1)
		return
	}
	w := &f.work[slot]
	c, k, left := w.conn.Load(), Kind(w.kind.Load()), w.left.Load()
	if c == nil {
		f.strays.Add(1)
		return
	}
	numBytes, imm, err := f.resultOf(k, slot, done)
	// The place is free before anybody is told: who is told may post again.
	places, _, _ := f.placesOf(c, k)
	places.Add(-1)
	if f.table.Complete(done.ID, err, numBytes, imm) != op.Counted {
		places.Add(1)
		return
	}
	if left > 0 {
		f.before(w, c, err, 1)
	}
	f.settle(1)
}

// resultOf takes a message's number off.
func (f *Fabric) resultOf(k Kind, slot int, done *transport.Completion) (numBytes int64, imm uint32, err error) {
	if err = endOf(done.Status); err != nil {
		return 0, 0, err
	}
	numBytes = int64(done.NumBytes)
	switch k {
	case Send:
		numBytes -= headerBytes
	case Recv:
		if done.HasImm || numBytes < headerBytes {
			return 0, 0, ErrRequest // no fabric has sent this
		}
		numBytes -= headerBytes
		imm = uint32(number(f.header.at(slot)))
		if f.mutant == pairInOrder {
			f.poller.last++
			imm = f.poller.last
		}
	}
	return numBytes, imm, nil
}

// before takes note of the end of n slices that a write's immediate comes
// after: the carrier promises no order. Whoever ends the last one posts the one
// with the immediate, or ends it; until then the slot is the write's.
func (f *Fabric) before(w *work, c *conn, err error, n int64) {
	if err != nil {
		w.failed.Store(true)
	}
	if w.left.Add(-int32(n)) > 0 {
		return
	}
	last := w.last[0].ID
	res, gone := f.table.Look(op.RefOf(last))
	if w.failed.Load() || gone != nil || res.State != op.Pending {
		f.giveUp(c, WriteImm, last, op.ErrCancelled)
		return
	}
	if _, err := f.store.PostSend(c.ref, w.last[:]); err != nil {
		f.giveUp(c, WriteImm, last, ErrEnded)
	}
}

// releaseAll ends what the carrier will never complete, because it is gone.
func (f *Fabric) releaseAll() {
	for i := range f.work {
		w := &f.work[i]
		id := w.id.Load()
		for part := range w.parts.Load() {
			f.table.Complete(id|uint64(part), ErrClosed, 0, 0)
		}
	}
	f.owed.Store(0)
}
