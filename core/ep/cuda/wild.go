package cuda

import (
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// violations are the words that the device has found and that no rank can have stored.
// Buffer.stateMu guards them.
type violations struct {
	ranks rankset.Set // of the epoch: ranks with such words in their memory or messages
	total uint64      // each rank once in an epoch
	shown uint64      // what telemetry has, with the bits of members that were cleared again
}

// fenceTheWild takes out every rank with such a word in its memory or messages. The
// device goes on without it as without any rank that is lost. The caller holds
// b.stateMu.
func (b *Buffer) fenceTheWild(now time.Time) {
	others := b.entered.Without(b.self) // also ranks that have left by themselves meanwhile
	for r := range others.All() {
		word, found := b.engine.Wild(r)
		if !found {
			continue
		}
		b.countViolation(r)
		b.keepWhy(rankset.Of(r), now, word.Why())
		if membership.Fence(b.word, b.epoch, b.self, r) { // else others have to agree: the next turn asks again
			b.fencedFor(rankset.Of(r), now, word.Why())
		}
	}
}

// surrender ends this rank's part in its epoch when its own memory was overwritten. It
// takes no other rank out. The caller holds b.stateMu.
func (b *Buffer) surrender(f device.Failure) {
	b.countViolation(b.self)
	b.rec.Note(b.about(telemetry.Lost, b.self, 0, f.Error()))
	b.leaveFor(membership.Fenced, ep.FencedFor(f.Error()))
}

func (b *Buffer) countViolation(rank int) {
	if b.wild.ranks.Has(rank) {
		return
	}
	b.wild.ranks = b.wild.ranks.With(rank)
	b.wild.total++
	b.reportViolations()
}

// reportViolations shows the count to other processes. The caller holds b.stateMu.
func (b *Buffer) reportViolations() {
	if n := b.wild.total + b.word.Repaired(); n != b.wild.shown && !b.rec.Ended {
		b.rec.Area.SetViolations(n)
		b.wild.shown = n
	}
}
