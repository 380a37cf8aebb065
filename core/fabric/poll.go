package fabric

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/standby"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// poller polls the carrier. A caller that waits for an operation polls itself, on its own
// goroutine, if no other caller does, because being woken by another goroutine costs more
// than most operations. A goroutine in the background polls while no caller waits.
type poller struct {
	watch   *standby.Watch
	ended   chan struct{}
	stopped bool
	free    chan struct{} // the goroutine that has taken the token in it polls

	mu      sync.Mutex
	endings []*peer      // peers with condemned receivers that are to be ended
	due     atomic.Int32 // how many have not been, with those that a poll has taken

	// For the goroutine that polls.
	done   []transport.Completion
	handle func([]transport.Completion)
	conns  []*conn  // of refillAll
	ending []ending // of takeEndings
}

// ending is a peer with condemned receivers that are to be ended.
type ending struct {
	peer   *peer
	rounds int // polls since then that took in all they could
}

const (
	// pollAtLeast bounds a sleep: nothing depends on it.
	pollAtLeast = 100 * time.Millisecond
	// standbyEvery is the time without a waiting caller after which the background
	// begins.
	standbyEvery = time.Millisecond
	// catchUpRounds bounds what catchUp takes in, should more come all the time.
	catchUpRounds = 64
)

func (q *poller) start(f *Fabric) {
	q.watch, q.ended, q.free = standby.New(standbyEvery), make(chan struct{}), make(chan struct{}, 1)
	q.done, q.handle = make([]transport.Completion, 64), f.handle
	q.free <- struct{}{}
	f.table.OnNews(f.cfg.Transport.Wake)
	safego.Go("fabric poller", func() {
		defer close(q.ended)
		if err := q.run(f); err != nil {
			f.breakDown(err)
		}
	}, f.breakDown)
}

func (q *poller) run(f *Fabric) error {
	timer := time.NewTimer(standbyEvery)
	defer timer.Stop()
	for first := true; first || q.watch.Rest(timer); first = false {
		calls := q.watch.Calls()
		if !q.take() {
			continue
		}
		if err := q.serve(f, calls); err != nil {
			return err
		}
	}
	return nil
}

// serve polls until a caller waits, or has polled since the given number of calls.
func (q *poller) serve(f *Fabric, calls uint64) error {
	defer q.give(f)
	for !q.watch.IsBusy() && !q.watch.Quits() {
		n, err := q.poll(f)
		if err != nil || q.watch.Calls() != calls {
			return err
		}
		if n == 0 {
			if err := f.cfg.Transport.Wait(pollAtLeast); err != nil {
				return err
			}
		}
	}
	return nil
}

// take gives the caller the right to poll, unless another goroutine has it.
func (q *poller) take() bool {
	select {
	case <-q.free:
		return true
	default:
		return false
	}
}

// give gives the right to poll back. Other goroutines may have left endings to its
// holder.
func (q *poller) give(f *Fabric) {
	q.free <- struct{}{}
	if q.due.Load() > 0 && q.isOn(f) {
		q.catchUp(f)
	}
}

// isOn reports whether polling is allowed.
func (q *poller) isOn(f *Fabric) bool { return !q.watch.Quits() && f.broken.Load() == nil }

// poll takes what has ended to its operations.
func (q *poller) poll(f *Fabric) (int, error) {
	ending := q.takeEndings() // before: what has arrived for them is there now
	n, err := f.store.Poll(q.done, q.handle)
	if len(ending) > 0 && err == nil {
		q.endWhenAllIsIn(f, n)
	}
	if err == nil && f.refill.Swap(false) {
		f.refillAll()
	}
	return n, err
}

// endReceivers ends a peer's condemned receivers, once all that has arrived is taken in:
// here, or by the goroutine that has the right to poll. That goroutine may be about to
// deliver what the receivers wait for, or may have come here from its own poll.
func (q *poller) endReceivers(f *Fabric, p *peer) {
	if p.match == nil {
		return
	}
	q.mu.Lock()
	if !slices.Contains(q.endings, p) {
		q.endings = append(q.endings, p)
		q.due.Add(1)
	}
	q.mu.Unlock()
	q.catchUp(f)
	if q.due.Load() > 0 {
		f.cfg.Transport.Wake()
	}
}

// takeEndings moves the endings that others have left to the goroutine that polls.
func (q *poller) takeEndings() []ending {
	if q.due.Load() > 0 {
		q.mu.Lock()
		for _, p := range q.endings {
			q.ending = append(q.ending, ending{peer: p})
		}
		clear(q.endings)
		q.endings = q.endings[:0]
		q.mu.Unlock()
	}
	return q.ending
}

// endWhenAllIsIn ends the receivers of takeEndings, unless a poll has found as much
// as it could take: there may be more. Each peer has its own rounds of that.
func (q *poller) endWhenAllIsIn(f *Fabric, n int) {
	kept := q.ending[:0]
	for _, e := range q.ending {
		if e.rounds++; n == len(q.done) && e.rounds < catchUpRounds {
			kept = append(kept, e)
			continue
		}
		f.abandonReceivers(e.peer, ErrEnded)
		q.due.Add(-1)
	}
	clear(q.ending[len(kept):])
	q.ending = kept
}

// catchUp takes in what is there if no goroutine polls. After it, everything is known
// that a peer was told has arrived.
func (q *poller) catchUp(f *Fabric) {
	if !q.take() {
		return
	}
	defer q.give(f)
	if !q.isOn(f) {
		return
	}
	q.watch.Call()
	for range catchUpRounds {
		n, err := q.poll(f)
		if err != nil {
			f.breakDown(err)
		}
		if err != nil || n < len(q.done) {
			return
		}
	}
}

// stop ends the polling: no goroutine polls any more.
func (q *poller) stop(f *Fabric) {
	if q.stopped {
		return
	}
	q.stopped = true
	q.watch.Quit()
	f.cfg.Transport.Wake()
	<-q.ended
	<-q.free
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

// completed takes in the end of a slice.
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
	// The place is free before the caller is told: it may post again then.
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
	}
	return numBytes, imm, nil
}

// before takes in the end of n slices that a write's immediate comes after: the carrier
// promises no order. The goroutine that ends the last of them posts the slice with the
// immediate, or ends it; until then the slot is the write's.
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
	f.outstanding.Store(0)
}
