package cpu

import (
	"runtime"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// How a wait passes its time, as measured for 2 to 8 ranks on 2 cores (see
// docs/performance.md): it spins, then gives the processor away, then sleeps. A sleep
// lasts for Buffer.pollInterval at most, because a waker may stop between its store and
// its wake. Where ranks share processors, they sleep right after the spin: the kernel
// puts a thread that yields again and again off for long when it has something to do.
// Config.SpinFor replaces yieldFor, and spinFor where it is shorter.
const (
	spinFor  = 2 * time.Microsecond
	yieldFor = 500 * time.Microsecond
)

// spinsFor says how long a wait spins, and how long it is awake in all.
func spinsFor(asked time.Duration, ranks int) (spins, awake time.Duration) {
	switch {
	case asked > 0:
		return min(asked, spinFor), asked
	case asked < 0:
		return 0, 0
	case ranks > runtime.NumCPU():
		return spinFor, 0
	}
	return spinFor, yieldFor
}

type kind int

const (
	kindDispatch kind = iota
	kindCombine
	kindReaders // no reader left of an earlier combine
	numKinds    = 3
)

func (k kind) String() string {
	return [...]string{"dispatch", "combine", "combine buffer"}[k]
}

// task is one operation, as its waiters see it. hold makes it, drop ends it.
type task struct {
	s    *slot
	n    uint64
	kind kind
	st   *op.Op
}

// hold keeps the state of an operation readable until drop.
func (b *Buffer) hold(s *slot, k kind) task {
	c := s.call(k)
	c.holders++
	return task{s: s, n: s.op, kind: k, st: c.st}
}

// drop ends the use of a task.
func (b *Buffer) drop(t task) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := t.s.call(t.kind); c.st == t.st {
		c.holders--
	}
}

func (s *slot) call(k kind) *call {
	switch k {
	case kindDispatch:
		return &s.dispatch.call
	case kindCombine:
		return &s.combine.call
	default:
		return &s.readerWait
	}
}

// step does what can be done now, for this operation and for every slot.
func (b *Buffer) step(t task, until ep.Phase) (waiting rankset.Set, reached bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.st.State() != op.Pending {
		return rankset.Set{}, true, t.st.Err()
	}
	if err := b.usable(); err != nil {
		t.st.End(op.Failed, err)
		return rankset.Set{}, true, t.st.Err()
	}
	if err := b.progress(); err != nil {
		return rankset.Set{}, false, err
	}
	b.recordLeavers(t) // before the step records the wait for them
	waiting, sent, err := b.stepTask(t)
	if err == ep.ErrFenced {
		b.expelled()
		err = b.life.Why()
	}
	if own := b.surrender(); own != nil {
		err = own
	}
	if b.remote != nil {
		b.flush()
	}
	if t.st.State() != op.Pending { // a caller may have left it in the middle of a wait
		b.waits.blame(entryOf(t.s, t.kind), t.st, rankset.Set{}, 0, &b.peers[b.self])
	}
	reached = t.st.State() == op.Done || (until == ep.PhaseSent && sent)
	b.rec.step(t, waiting, reached)
	return waiting, reached, err
}

// stepTask is the part of step for this operation. sent says that its first phase is over.
func (b *Buffer) stepTask(t task) (waiting rankset.Set, sent bool, err error) {
	switch t.kind {
	case kindDispatch:
		waiting, err = b.stepDispatch(t.s)
		sent = t.s.located
	case kindCombine:
		waiting, err = b.stepCombine(t.s)
		sent = t.s.combine.published
	case kindReaders:
		if waiting = b.readers(t.s).Minus(b.out()); waiting.Empty() {
			t.s.readerWait.end(op.Done, nil)
		}
	}
	return waiting, sent, err
}

// limitOf turns a slice of time into the moment when it is over.
func (b *Buffer) limitOf(slice time.Duration) time.Time {
	if slice < 0 {
		return time.Time{}
	}
	return b.now().Add(slice)
}

// drive steps the operation until the phase is reached or the limit (zero:
// none) has come. Ranks that are lost or late beyond the deadline are taken
// out of the group on the way, so that it ends.
func (b *Buffer) drive(t task, until ep.Phase, limit time.Time) (err error) {
	w := wait{b: b, t: t, blamed: -1}
	entered := b.pump.enter()
	defer func() {
		w.end(err == ep.ErrInProgress)
		b.pump.leave(entered)
	}()
	for {
		waiting, reached, err := b.step(t, until)
		switch {
		case err != nil && t.st.State() == op.Pending: // not an error of this operation only
			b.fail(op.Failed, err)
			return err
		case err != nil:
			return err
		case reached:
			b.nextPhase(t)
			return nil
		}
		if err := w.pause(waiting, limit); err != nil {
			return err
		}
	}
}

// nextPhase gives the phase after the first one a deadline of its own.
func (b *Buffer) nextPhase(t task) {
	if t.st.State() != op.Pending {
		return // there is none
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := t.s.call(t.kind); c.st == t.st && !c.sent {
		c.deadline, c.waits, c.sent = time.Time{}, time.Time{}, true
	}
}

// wait is the state of one call of drive.
type wait struct {
	b        *Buffer
	t        task
	peers    []suspicion.Peer
	epoch    membership.Epoch
	begin    time.Time
	last     time.Time
	deadline time.Time
	members  uint64 // the word, as last seen
	timeout  time.Duration
	blamed   int         // the time since `last` counts for this rank
	shown    rankset.Set // ranks that our control page names
	since    time.Time   // when the first wait of this phase began
	asleep   bool        // a sleep was announced
	slept    bool        // since the page was last written
	ticket   uint32
}

// pause passes a little time, and looks for reasons to give up on a rank.
func (w *wait) pause(waiting rankset.Set, limit time.Time) error {
	now := w.b.now()
	if w.begin.IsZero() {
		w.start(now)
	}
	w.account(now, waiting)
	elapsed := now.Sub(w.begin)
	if elapsed < w.b.spins || w.lookAround(now, waiting) {
		return nil
	}
	if !limit.IsZero() && !now.Before(limit) {
		return ep.ErrInProgress
	}
	if elapsed < w.b.yields {
		w.b.dom.Yield()
		return nil
	}
	w.sleep(now, limit)
	return nil
}

func (w *wait) start(now time.Time) {
	w.begin, w.last = now, now
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.peers, w.epoch, w.members = w.b.peers, w.b.epoch, w.b.word.Load()
	c := w.t.s.call(w.t.kind)
	w.since = now
	if c.st != w.t.st {
		return // ended meanwhile; the next step sees it
	}
	if c.waits.IsZero() {
		c.waits = now // and not again in the next slice: failure detectors count from here
	}
	w.since = c.waits
	if c.deadline.IsZero() && c.timeout >= 0 {
		c.deadline = now.Add(c.timeout)
	}
	w.deadline, w.timeout = c.deadline, c.timeout
	w.b.watchSlow(w.t, now)
}

// account adds the time since the last call to the total of the rank waited for. It
// publishes which ranks this rank waits for and that it is alive.
func (w *wait) account(now time.Time, waiting rankset.Set) {
	if w.blamed >= 0 {
		w.b.count.wait[w.blamed].Add(int64(now.Sub(w.last)))
	}
	own := &w.peers[w.b.self]
	if waiting != w.shown || w.slept { // another waiter of the operation may have ended
		w.slept = false
		w.b.waits.blame(entryOf(w.t.s, w.t.kind), w.t.st, waiting, w.b.rec.Clock.At(w.since), own)
	}
	own.Beat().Add(1)
	w.last, w.blamed, w.shown = now, lowest(waiting), waiting
}

// sleep announces a sleep the first time, so that the words are looked at
// once more, and sleeps the second time.
func (w *wait) sleep(now time.Time, limit time.Time) {
	if !w.asleep {
		w.ticket, w.asleep = w.b.dom.PrepareSleep(), true
		return
	}
	w.complain(now)
	d := w.b.pollInterval
	if !w.deadline.IsZero() && now.Before(w.deadline) {
		d = min(d, w.deadline.Sub(now))
	}
	if !limit.IsZero() {
		d = min(d, limit.Sub(now))
	}
	w.b.dom.Sleep(w.ticket, max(d, time.Microsecond))
	w.asleep, w.slept = false, true
}

func (w *wait) end(inProgress bool) {
	if w.asleep {
		w.b.dom.CancelSleep()
	}
	if w.begin.IsZero() {
		return
	}
	waiting := w.shown // still, for ranks that suspect us between two slices
	if w.t.st.State() != op.Pending || !inProgress {
		waiting = rankset.Set{}
	}
	w.account(w.b.now(), waiting)
}

// lowest returns the lowest rank of a set; -1 for the empty set.
func lowest(ranks rankset.Set) int {
	if ranks.Empty() {
		return -1
	}
	return ranks.Min()
}
