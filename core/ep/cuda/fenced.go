package cuda

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// fenced are ranks of this host that the group has taken out while this rank stayed in
// it, and that may still write into memory here.
type fenced struct {
	since [rankset.MaxRanks]time.Time // zero: the rank is not one of them
	ended rankset.Set                 // ranks with a process that was killed, or cannot be
	kept  rankset.Set                 // ranks with a process that is not killed, since it holds healthy ranks, too
	// absent were taken out because they had not come to a rendezvous: leaveOut.
	absent rankset.Set
}

// endFenced kills the processes that Config.EndAfter asks to kill. loud are the ranks
// that were members of the epoch, are not any more, and may still write. The caller
// holds b.stateMu and is a member: a rank that is out itself may be on the wrong side,
// and kills no process.
func (b *Buffer) endFenced(loud rankset.Set, now time.Time) {
	if b.cfg.EndAfter == 0 {
		return
	}
	for r := range b.ranks {
		if !loud.Has(r) {
			b.fenced.since[r] = time.Time{}
		} else if b.fenced.since[r].IsZero() {
			b.fenced.since[r] = now
		}
	}
	b.endOverdue(loud, now)
}

// endOverdue kills the processes of those loud ranks that are overdue. The caller holds
// b.stateMu.
func (b *Buffer) endOverdue(loud rankset.Set, now time.Time) {
	loud = loud.Minus(b.left(loud)) // a rank that has left quiesces by itself, and may take its time
	for r, since := range b.fenced.since {
		due := loud.Minus(b.fenced.ended).Has(r) && !since.IsZero()
		if !due || now.Sub(since) < b.cfg.EndAfter || b.keep(r, now.Sub(since)) {
			continue
		}
		b.fenced.ended = b.fenced.ended.With(r)
		b.rec.Note(b.about(telemetry.Lost, r, now.Sub(since), b.kill(r)))
	}
}

// keep reports whether a rank's process is spared for now, and records that once. The
// caller holds b.stateMu.
func (b *Buffer) keep(rank int, waited time.Duration) bool {
	other, is := b.housemate(rank)
	if is && !b.fenced.kept.Has(rank) {
		b.fenced.kept = b.fenced.kept.With(rank)
		b.rec.Note(b.about(telemetry.Lost, rank, waited, fmt.Sprintf("%s%d, which was not taken out", whyKept, other)))
	}
	return is
}

// housemate finds another rank of the same process that was not taken out: it is a
// member, or has left by itself, or was not at a rendezvous. A process that is not
// visible from here, because it is in another pid namespace, counts as one with a
// single rank.
func (b *Buffer) housemate(rank int) (other int, is bool) {
	pid := b.pidOf(rank)
	if pid == 0 {
		return 0, false
	}
	healthy := membership.Members(b.word.Load()).Ranks().Or(b.left(b.entered)).Or(b.fenced.absent)
	for other := range b.entered.And(healthy).Minus(rankset.Of(b.self, rank)).All() {
		if b.pidOf(other) == pid {
			return other, true
		}
	}
	return 0, false
}

// kill ends a rank's process and says what came of it.
func (b *Buffer) kill(rank int) string {
	process, ok := b.mapped[rank].of.(domain.Endable)
	if !ok {
		return whyNotEnded + "it is in this process, or on another host"
	}
	if err := process.End(); err != nil {
		return whyNotEnded + err.Error()
	}
	return fmt.Sprintf("%s (%d): it was out, and not quiesced after %v", whyKilled, process.PID(), b.cfg.EndAfter)
}

// Reasons of events, beside those of observe.go.
const (
	whyKilled   = "its process was killed"
	whyNotEnded = "its process should be killed, and cannot be: "
	whyKept     = "its process should be killed, and is not as long as it holds rank "
)
