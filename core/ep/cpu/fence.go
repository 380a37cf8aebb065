package cpu

import (
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// lookAround takes ranks out of the group if it is useless to wait for them. It
// reports whether the group has changed: then look at the words again.
func (w *wait) lookAround(now time.Time, waiting rankset.Set) (changed bool) {
	if w.b.findsItselfHurt() {
		return true // the next step returns the error
	}
	for t := range waiting.All() {
		if p := w.peers[t].Proc; p != nil && p.Dying() {
			w.fence(now, t)
		}
	}
	if members := w.b.word.Load(); members != w.members {
		w.members = members
		w.extend(now)
		return true
	}
	if !w.deadline.IsZero() && !now.Before(w.deadline) {
		return w.blameStraggler(now, waiting)
	}
	return false
}

// extend gives all other ranks a fresh deadline after a loss: a late rank may
// only have waited for the lost rank. A group loses each rank once, so the
// wait stays bounded.
func (w *wait) extend(now time.Time) {
	if w.deadline.IsZero() {
		return
	}
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	if c := w.t.s.call(w.t.kind); c.st == w.t.st {
		c.deadline = now.Add(c.timeout)
		c.suspicion.Restart()
		w.deadline = c.deadline
	}
}

// fence takes a rank out of the group because its process has ended, unless another
// rank has done so, or this rank is out itself.
func (w *wait) fence(now time.Time, target int) {
	why := ep.WhyDead(w.peers[target].Proc)
	w.keepWhy(now, rankset.Of(target), why)
	if membership.Fence(w.b.word, w.epoch, w.b.self, target) {
		w.fenced(now, rankset.Of(target), why)
	}
}

// fenced records the ranks that this rank has taken out, and wakes all ranks. Between hosts another call
// may have found them out meanwhile, and have counted them (recordFound).
func (w *wait) fenced(now time.Time, blamed rankset.Set, why string) {
	w.b.wakeAll()
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	if w.b.dom.Remote() != nil && w.b.epoch == w.epoch {
		blamed = blamed.And(w.b.known)
	}
	w.b.lost.Add(uint64(blamed.Len()))
	w.b.recordLost(blamed.Without(w.b.self), now.Sub(w.since), w.t, why)
}

// keepWhy notes why ranks have to go out, before this rank asks for that: others may have to agree,
// and then it happens at no call of this rank.
func (w *wait) keepWhy(now time.Time, ranks rankset.Set, why string) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	if w.b.epoch != w.epoch {
		return // an update has taken place: the rank may be back
	}
	for r := range ranks.Without(w.b.self).All() {
		w.b.keepLoss(r, ep.Loss{
			Why: why, Waiting: w.t.kind.String(), Op: w.t.n, Waited: now.Sub(w.since), Until: ep.LateUntil(why, now),
		})
	}
}

// blameStraggler finds the ranks to fence for a deadline that has passed. It fences
// them if the group is still the one in which the suspicion began: else the late rank
// may have waited for a rank that another one has fenced just now. It takes a
// few looks; false: look again.
func (w *wait) blameStraggler(now time.Time, waiting rankset.Set) (decided bool) {
	v, decided := w.try(now, waiting)
	if v.Causes.Empty() {
		return decided
	}
	w.keepWhy(now, v.Causes, ep.WhyTimedOut)
	if membership.Expel(w.b.word, membership.Members(w.members), w.epoch, w.b.self, v.Causes) {
		w.fenced(now, v.Causes, ep.WhyTimedOut)
	}
	return decided
}

func (w *wait) try(now time.Time, waiting rankset.Set) (v suspicion.Decision, decided bool) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	c := w.t.s.call(w.t.kind)
	if c.st != w.t.st || c.st.State() != op.Pending || w.b.epoch != w.epoch {
		return suspicion.Decision{}, true // ended meanwhile; the next step sees it
	}
	v, decided = c.suspicion.Look(now, &suspicion.Graph{
		Peers: w.peers, Self: w.b.self, Members: w.b.membersOf(w.epoch), Timeout: w.timeout,
		PollInterval: w.b.pollInterval, Age: suspicion.WordAge(w.b.dom), Clock: &w.b.rec.Clock,
	}, waiting)
	if decided && v.Causes.Empty() && !v.Until.IsZero() {
		c.deadline, w.deadline = v.Until, v.Until
	}
	return v, decided
}
