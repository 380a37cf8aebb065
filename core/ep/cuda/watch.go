package cuda

import (
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/safego"
)

// watch is the state of the goroutine that decides for the device. All but
// ended is guarded by Buffer.stateMu.
type watch struct {
	stop            bool
	ended           chan struct{}
	askAt           time.Time     // the watcher does not ask before that whether the device is idle
	pause           time.Duration // between the last two such questions
	pendingQuiesced bool          // this rank is out, and has not said yet that it writes nothing more
	asking          chan struct{} // closed when the watcher has heard from the device; nil: it does not ask
	members         uint64        // the word that the device was told
	timedOut        rankset.Set   // ranks that the device waits for beyond its deadline
	shown           rankset.Set   // ranks that others know we wait for
	began           [rankset.MaxRanks]began
	until           time.Time // no rank is suspected before that
}

// began is when a wait for a rank was first seen.
type began struct {
	wait uint64 // the device's name for it; 0: there is none
	at   time.Time
	slow time.Duration // of waiting at which to complain next; 0: the first time
}

// How often the watcher looks: while the device waits for a rank, and else. A wait that
// begins meanwhile is seen at the next look. A change of the members wakes the watcher
// at once.
const (
	watchBusy = time.Millisecond
	watchIdle = 4 * time.Millisecond
	// longestPause is for a device that is in a capture at every question.
	longestPause = time.Second
)

func (w *watch) begin(b *Buffer) {
	w.ended = make(chan struct{})
	safego.Go("cuda watcher", b.watchLoop, func(err error) {
		defer close(w.ended)
		b.stateMu.Lock()
		defer b.stateMu.Unlock()
		if b.life.IsMember() {
			b.leaveFor(membership.Failed, err)
		}
	})
}

// reset forgets what was seen of another epoch.
func (w *watch) reset() { *w = watch{ended: w.ended, stop: w.stop, asking: w.asking} }

func (b *Buffer) watchLoop() {
	for {
		period, stop := b.look(time.Now())
		if stop {
			close(b.watch.ended)
			return
		}
		ticket := b.dom.PrepareSleep()
		if b.watchHasWork() {
			b.dom.CancelSleep()
			continue
		}
		b.dom.Sleep(ticket, period)
		b.ringRemote()
	}
}

// watchHasWork looks once more after the watcher has announced its sleep.
func (b *Buffer) watchHasWork() bool {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	return b.watch.stop || (b.life.IsMember() && b.word.Load() != b.watch.members)
}

// look is one turn. It waits only for the device, and only when this rank is out.
func (b *Buffer) look(now time.Time) (period time.Duration, stop bool) {
	period, pending, stop := b.turn(now)
	if pending {
		b.calmDown()
	}
	return period, stop
}

func (b *Buffer) turn(now time.Time) (period time.Duration, pendingQuiesced, stop bool) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.fold()
	if b.life.IsMember() {
		_ = b.checkUsable() // notices errors and an expulsion
	}
	if w := &b.watch; !b.life.IsMember() {
		pending := w.pendingQuiesced && !w.stop && w.asking == nil && !now.Before(w.askAt)
		if pending {
			w.asking = make(chan struct{})
		}
		return watchIdle, pending, w.stop
	}
	b.fenceTheDying(now)
	b.fenceTheWild(now)
	b.order(now)
	return b.decide(now), false, b.watch.stop
}

// drain waits until the device has done what this process has launched. This rank is
// out, so no call launches anything after the one that runs now.
func (b *Buffer) drain() error {
	b.awaitCall()
	return b.dev.Synchronize()
}

func (b *Buffer) awaitCall() {
	b.mu.Lock()
	defer b.mu.Unlock()
}

// calmDown waits until nothing of this rank runs on the device, and says so. A broken
// device runs nothing any more. A device that could not be asked is asked again.
func (b *Buffer) calmDown() {
	err := b.drain()
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	close(b.watch.asking)
	b.watch.asking = nil
	if !device.IsIdle(err) {
		b.watch.backOff(time.Now())
		return
	}
	if !b.life.IsMember() && b.watch.pendingQuiesced { // Prepare may have been faster
		b.announceQuiesced()
	}
}

// backOff leaves the device alone for twice as long as the last time: the question has
// spoiled a capture, or has failed.
func (w *watch) backOff(now time.Time) {
	w.pause = min(max(2*w.pause, watchIdle), longestPause)
	w.askAt = now.Add(w.pause)
}

// announceQuiesced says that this rank writes nothing more in its epoch. Callers ensure
// that nothing of this rank runs on the device.
func (b *Buffer) announceQuiesced() {
	b.watch.pendingQuiesced = false
	b.detector.Show(rankset.Set{}, time.Time{})
	b.detector.PublishQuiesced()
	b.wakeAll()
}

// fenceTheDying takes ranks out when their processes end. On a device a wait may begin
// at any time, so no rank has to wait for them first.
func (b *Buffer) fenceTheDying(now time.Time) {
	others := membership.Members(b.word.Load()).Ranks().Without(b.self)
	for r := range b.detector.Dying(others).All() {
		why := ep.WhyDead(b.detector.Process(r))
		b.keepWhy(rankset.Of(r), now, why)
		if membership.Fence(b.word, b.epoch, b.self, r) {
			b.fencedFor(rankset.Of(r), now, why)
		}
	}
}

// order tells the device which ranks are members. First it tells which of the other
// ranks write nothing more.
func (b *Buffer) order(now time.Time) {
	word := b.word.Load()
	b.reportViolations()
	if out := b.entered.Minus(membership.Members(word).Ranks()); !out.Empty() {
		quiesced := b.quiesced(out)
		b.engine.SetQuiesced(quiesced)
		if membership.Members(word).In(b.epoch, b.self) {
			b.endFenced(out.Minus(quiesced), now)
		}
	}
	if w := &b.watch; word != w.members {
		w.members, w.timedOut, w.until = word, rankset.Set{}, time.Time{} // the device's deadlines start again
		b.detector.Reset()
		b.engine.SetMembers(word)
		if set := membership.Members(word); set.In(b.epoch, b.self) {
			b.recordLeavers(now, set.Ranks())
		}
	}
}

// decide learns which ranks the device waits for, and finds the rank to blame for a
// deadline that has passed.
func (b *Buffer) decide(now time.Time) (period time.Duration) {
	w := &b.watch
	word := membership.Members(w.members)
	if !word.In(b.epoch, b.self) {
		return watchBusy // the next turn notices
	}
	waits := b.engine.Waits().And(word.Ranks()).Without(b.self)
	since := w.waiting(waits, now, b.engine.Wait)
	if !waits.Empty() || !w.shown.Empty() {
		b.detector.Show(waits, since)
		w.shown = waits
		b.recordSlow(waits, now)
	}
	w.timedOut = b.engine.StillTimedOut(w.timedOut.Or(b.engine.TakeTimedOut()).And(waits))
	if w.timedOut.Empty() {
		b.detector.Reset()
		w.until = time.Time{}
	} else if !now.Before(w.until) {
		b.blameStraggler(now, word)
	}
	if waits.Empty() {
		return watchIdle
	}
	return watchBusy
}

// waiting notes since when the device waits for each of the ranks, and returns the
// earliest time. A wait that follows another one for the same rank has just begun.
func (w *watch) waiting(ranks rankset.Set, now time.Time, wait func(rank int) uint64) (since time.Time) {
	since = now
	for r := range w.began {
		is, which := &w.began[r], uint64(0)
		if ranks.Has(r) {
			which = wait(r) // 0: the wait has ended meanwhile
		}
		if which == 0 {
			*is = began{}
			continue
		}
		if which != is.wait {
			*is = began{wait: which, at: now}
		}
		if is.at.Before(since) {
			since = is.at
		}
	}
	return since
}

// waited is how long the device has waited for a rank.
func (w *watch) waited(rank int, now time.Time) time.Duration {
	if w.began[rank].wait == 0 {
		return 0
	}
	return now.Sub(w.began[rank].at)
}

// blameStraggler continues a suspicion. It expels the rank that it blames under two
// conditions: the group is still the one in which the suspicion began, and the ranks
// that caused it are still late. So a rank that came meanwhile is not blamed for the
// next wait.
func (b *Buffer) blameStraggler(now time.Time, seen membership.Members) {
	causes, until, decided := b.detector.Try(now, b.watch.timedOut, b.timeout)
	if !decided {
		return
	}
	b.watch.until = until
	if causes.Empty() || b.engine.StillTimedOut(b.watch.timedOut) != b.watch.timedOut {
		return
	}
	b.keepWhy(causes, now, ep.WhyTimedOut)
	if membership.Expel(b.word, seen, b.epoch, b.self, causes) {
		b.fencedFor(causes, now, ep.WhyTimedOut)
	}
}
