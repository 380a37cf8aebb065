package cpu

import (
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/domain"
)

// NewWithoutPump is New for tests that take messages themselves, by Pump.
func NewWithoutPump(dom domain.Domain, kern device.Kernels, cfg ep.Config) (*Buffer, error) {
	return open(dom, kern, cfg, false)
}

// Pump does what the goroutine does that takes messages while no caller waits.
func Pump(b *Buffer) { b.pumpOnce() }

// IsOpen reports whether such a goroutine would go on.
func IsOpen(b *Buffer) bool { return b.err() == nil }

// IsUnlocked reports whether a call would have to wait for the lock.
func IsUnlocked(b *Buffer) bool {
	free := b.mu.TryLock()
	if free {
		b.mu.Unlock()
	}
	return free
}

// Locked runs f while the buffer's calls and its goroutine do nothing.
func Locked(b *Buffer, f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// RecordLeavers does what another call would do that finds ranks out. It does nothing while the lock is held.
func RecordLeavers(b *Buffer) {
	if !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	s := &b.slots[0]
	b.recordLeavers(task{s: s, n: s.op, kind: kindDispatch, st: s.call(kindDispatch).st})
}

// WaitsFor has one bit for each rank that a rank's callers wait for.
func WaitsFor(b *Buffer) uint64 { return b.peers[b.self].WaitsFor().Load() }

// SetClock makes a buffer take the time from a test.
func SetClock(b *Buffer, now func() time.Time) { b.now = now }

// SetPollInterval fixes the longest sleep of a wait, which otherwise depends on
// the machine.
func SetPollInterval(b *Buffer, d time.Duration) { b.pollInterval = d }

// SetRecording turns recording on or off between operations, so that both can
// be timed on the same memory.
func (b *Buffer) SetRecording(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rec.on = on
}

// PlansKept is the number of dispatches that used a plan made before.
func PlansKept(b *Buffer) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count.plansKept
}

// ForgetPlans makes the next dispatches plan anew.
func ForgetPlans(b *Buffer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for j := range b.slots {
		b.slots[j].plan.key = planKey{}
	}
}

// Planning returns what plans a dispatch, without the dispatch: "new", or with
// the plan known in the "same slot" or the "other slot".
func Planning(b *Buffer, a *ep.DispatchArgs, from string) func() {
	s, other := &b.slots[0], &b.slots[1]
	local := int64(a.NumExperts / b.ranks)
	s.slab.LocalExperts, other.slab.LocalExperts = local, local
	s.plan.key, other.plan.key = planKey{}, planKey{}
	b.plan(other, a, b.all)
	return func() {
		if from != "same slot" {
			s.plan.key = planKey{}
		}
		if from != "other slot" {
			other.plan.key = planKey{}
		}
		b.plan(s, a, b.all)
	}
}
