package ep

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/membership"
	"github.com/moewire/moewire/core/op"
)

// How a wait passes its time, as measured for 2 to 8 ranks on 2 cores (see
// docs/performance.md): spin, then give the processor away, then sleep. A
// sleep is bounded because a waker may stop between its store and its wake.
const (
	spinFor  = 2 * time.Microsecond
	yieldFor = 500 * time.Microsecond
	sleepFor = 5 * time.Millisecond
)

type kind int

const (
	kindDispatch kind = iota
	kindCombine
	kindQuiet // no reader left of an earlier combine
)

func (k kind) String() string {
	return [...]string{"dispatch", "combine", "combine buffer"}[k]
}

// task is one operation, as its waiters see it. Made by hold, ended by drop.
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
		return &s.quiet
	}
}

// step does what can be done now, for this operation and for every slot.
func (b *Buffer) step(t task, until Phase) (waiting uint64, reached bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.st.State() != op.Pending {
		return 0, true, t.st.Err()
	}
	if err := b.err(); err != nil {
		t.st.End(op.Failed, err)
		return 0, true, err
	}
	b.progress()
	sent := false
	switch t.kind {
	case kindDispatch:
		waiting, err = b.stepDispatch(t.s)
		sent = t.s.unsent == 0
	case kindCombine:
		waiting, err = b.stepCombine(t.s)
		sent = t.s.combine.published
	case kindQuiet:
		if waiting = b.readers(t.s); waiting == 0 {
			t.s.quiet.end(op.Done, nil)
		}
	}
	reached = t.st.State() == op.Done || (until == PhaseSent && sent)
	b.rec.step(t, waiting, reached)
	return waiting, reached, err
}

// limitOf turns a slice of time into the moment when it is over.
func limitOf(slice time.Duration) time.Time {
	if slice < 0 {
		return time.Time{}
	}
	return time.Now().Add(slice)
}

// drive steps the operation until the phase is reached, its deadline passes,
// a rank it waits for is lost, or the limit (zero: none) has come.
func (b *Buffer) drive(t task, until Phase, limit time.Time) error {
	w := wait{b: b, t: t, blamed: -1}
	defer w.end()
	for {
		waiting, reached, err := b.step(t, until)
		switch {
		case err != nil && t.st.State() == op.Pending: // not this operation's alone
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
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := t.s.call(t.kind); c.st == t.st && !c.sent {
		c.deadline, c.sent = time.Time{}, true
	}
}

// wait is the state of one call of drive.
type wait struct {
	b         *Buffer
	t         task
	begin     time.Time
	last      time.Time
	deadline  time.Time
	timeout   time.Duration // that the deadline was made of
	blamed    int           // rank that the time since `last` is counted for
	suspected bool          // a rank was seen lost: one more look at its words
	asleep    bool          // a sleep was announced
	ticket    uint32
}

// pause passes a little time, and looks for reasons to give up.
func (w *wait) pause(waiting uint64, limit time.Time) error {
	now := time.Now()
	if w.begin.IsZero() {
		w.start(now)
	}
	w.account(now, lowest(waiting))
	elapsed := now.Sub(w.begin)
	if elapsed < spinFor {
		return nil
	}
	if err := w.giveUp(now, waiting); err != nil {
		return err
	}
	if !limit.IsZero() && !now.Before(limit) {
		return ErrInProgress
	}
	if elapsed < yieldFor || w.suspected {
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
	c := w.t.s.call(w.t.kind)
	if c.st != w.t.st {
		return // ended meanwhile; the next step sees it
	}
	if c.deadline.IsZero() && c.timeout >= 0 {
		c.deadline = now.Add(c.timeout)
	}
	w.deadline, w.timeout = c.deadline, c.timeout
	w.b.watchSlow(w.t, now)
}

// account books the time since the last call for the rank waited for, and
// publishes whom we wait for and that we are alive.
func (w *wait) account(now time.Time, rank int) {
	if w.blamed >= 0 {
		w.b.count.wait[w.blamed].Add(int64(now.Sub(w.last)))
	}
	control := w.b.dom.Control(w.b.self)
	if rank != w.blamed {
		control.Word(layout.WaitsFor()).Store(uint64(rank + 1))
	}
	control.Word(layout.Beat()).Add(1)
	w.last, w.blamed = now, rank
}

// sleep announces a sleep the first time, so that the words are looked at
// once more, and sleeps the second time.
func (w *wait) sleep(now time.Time, limit time.Time) {
	if !w.asleep {
		w.ticket, w.asleep = w.b.dom.PrepareSleep(), true
		return
	}
	w.complain(now)
	d := sleepFor
	if !w.deadline.IsZero() {
		d = min(d, w.deadline.Sub(now))
	}
	if !limit.IsZero() {
		d = min(d, limit.Sub(now))
	}
	w.b.dom.Sleep(w.ticket, max(d, time.Microsecond))
	w.asleep = false
}

func (w *wait) end() {
	if w.asleep {
		w.b.dom.CancelSleep()
	}
	if w.blamed >= 0 {
		w.account(time.Now(), -1)
	}
}

// giveUp ends the wait when its deadline is over or a rank it waits for is
// lost. Data wins: a lost rank's words are looked at once more before.
func (w *wait) giveUp(now time.Time, waiting uint64) error {
	lost := w.b.lost(waiting)
	if again := lost != nil && !w.suspected; again {
		w.suspected = true
		return nil
	}
	w.suspected = lost != nil
	switch {
	case lost != nil:
		w.b.lostInWait(w.t, waiting, now.Sub(w.begin), lost)
		err := fmt.Errorf("%w: %w, while rank %d waited for it in %s of operation %d", ErrPeerLost, lost, w.b.self, w.t.kind, w.t.n)
		w.b.fail(op.Failed, err)
		return err
	case !w.deadline.IsZero() && !now.Before(w.deadline):
		err := fmt.Errorf("%w: rank %d waited %v for %s in %s of operation %d", ErrTimeout, w.b.self, w.timeout, rankNames(waiting), w.t.kind, w.t.n)
		w.b.fail(op.TimedOut, err)
		return err
	}
	return nil
}

// lost returns why one of the ranks will not come any more. The cause is a
// rank that ended while it was a member, if there is one: a rank that left,
// and perhaps ended then, may only have given up on it.
func (b *Buffer) lost(waiting uint64) error {
	members := b.members()
	gone := waiting &^ members
	for rest := waiting; rest != 0; rest &= rest - 1 {
		if b.dom.Lost(bits.TrailingZeros64(rest)) != nil {
			gone |= rest & -rest
		}
	}
	if gone == 0 {
		return nil
	}
	for rest := members; rest != 0; rest &= rest - 1 {
		if err := b.dom.Lost(bits.TrailingZeros64(rest)); err != nil {
			return err
		}
	}
	return fmt.Errorf("rank %d left the group", lowest(gone))
}

// members returns the ranks that are in the set of our epoch.
func (b *Buffer) members() uint64 {
	set := membership.Set(b.dom.Members().Load())
	if set.Epoch() != b.epoch {
		return 0
	}
	return set.Ranks()
}

func rankNames(ranks uint64) string {
	var names []string
	for rest := ranks; rest != 0; rest &= rest - 1 {
		names = append(names, fmt.Sprint(bits.TrailingZeros64(rest)))
	}
	if len(names) == 1 {
		return "rank " + names[0]
	}
	return "ranks " + strings.Join(names, ", ")
}
