package ep

import (
	"fmt"
	"strings"
	"time"

	"github.com/moewire/moewire/core/group/domain"
)

// Loss is why a rank has to go out of the group, and the wait in which this rank has found that.
type Loss struct {
	Why     string
	Waiting string        // the kind of operation that waited; "": none did
	Op      uint64        // that operation
	Waited  time.Duration // how long it had
	Asked   bool          // the rank stays until others have agreed
	// Until is when the reason is stale, because the rank may come before that. Zero: it holds for
	// the rest of the epoch.
	Until time.Time
}

// StaleAfter is how long a rank that was late, or silent, may go out for that reason. The waits for
// it find the reason again every few heartbeats, and others agree on a loss in some 100 ms.
const StaleAfter = 2 * time.Second

// wait says in which wait that was found.
func (l *Loss) wait() string {
	if l.Waiting == "" {
		return ""
	}
	return fmt.Sprintf(", after %v in %s of operation %d", l.Waited.Round(time.Millisecond), l.Waiting, l.Op)
}

// Losses are what a rank knows, in one epoch, of ranks that others have yet to take out. The zero
// value is empty.
type Losses struct{ of map[int]Loss }

// Keep notes why a rank has to go out. A reason that holds stays, whatever is found later.
func (l *Losses) Keep(rank int, loss Loss) {
	if l.of == nil {
		l.of = map[int]Loss{}
	}
	if known, ok := l.of[rank]; ok {
		loss.Asked = loss.Asked || known.Asked
		if known.Until.IsZero() {
			known.Asked, loss = loss.Asked, known
		}
	}
	l.of[rank] = loss
}

// Find returns why a rank has gone out, if this rank has found that and it is not stale. p is its
// process in this epoch.
func (l *Losses) Find(rank int, p domain.Process, now time.Time) (loss Loss, found bool) {
	loss, found = l.of[rank]
	if loss.Why == WhySilent {
		loss.Why = WhyDead(p) // that may be known by now
	}
	return loss, found && (loss.Until.IsZero() || now.Before(loss.Until))
}

// Reset forgets all: another epoch begins.
func (l *Losses) Reset() { clear(l.of) }

// explaining is a domain of several hosts, which carries reasons between them.
type explaining interface {
	Explain(rank int, why, wait string)
	Explained(rank int) string
}

// Explain tells the ranks of other hosts why a rank has to go out.
func Explain(dom domain.Domain, rank int, loss *Loss) {
	if d, ok := dom.(explaining); ok {
		d.Explain(rank, loss.Why, loss.wait())
	}
}

// WhyLost is why a rank is out that this rank has not taken out: what another rank says of it, or
// what is known of its process.
func WhyLost(dom domain.Domain, rank int, p domain.Process) string {
	var reported string
	if d, ok := dom.(explaining); ok {
		reported = d.Explained(rank)
	}
	if p != nil && p.Dying() && (reported == "" || strings.Contains(reported, WhySilent)) {
		if why := WhyDead(p); why != WhySilent { // its link was broken when it went out
			return why
		}
	}
	if reported != "" {
		return reported
	}
	return WhyGone
}

// WhyDead is why a rank has to go out whose process is Dying. Of a rank of another host it says no
// more than is known: the rank may be frozen, or cut off.
func WhyDead(p domain.Process) string {
	remote, is := p.(interface{ HowLost() string })
	switch {
	case !is:
		return WhyEnded
	case p.Lost() == nil:
		return WhySilent
	}
	return WhyEnded + ": " + remote.HowLost()
}

// LateUntil is when a reason is stale that a rank gave at some time; zero for one that holds.
func LateUntil(why string, now time.Time) time.Time {
	if why == WhySilent || why == WhyTimedOut {
		return now.Add(StaleAfter)
	}
	return time.Time{}
}
