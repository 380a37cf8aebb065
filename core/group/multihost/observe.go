package multihost

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/link"
)

// LinkState is how a remote rank is, as this rank sees it.
type LinkState uint8

// The states, from well to worse.
const (
	LinkUp           LinkState = iota + 1
	LinkUnresponsive           // not heard for the bound
	LinkBroken                 // the link carries nothing: it is reconnected, or the group has not decided yet
	LinkEnded                  // its process has ended, or it has closed its buffer
	LinkOut                    // it is no member any more
)

func (s LinkState) String() string {
	if s >= LinkUp && s <= LinkOut {
		return [...]string{"up", "unresponsive", "broken", "ended", "out"}[s-LinkUp]
	}
	return ""
}

// RemoteRank is what this rank sees of one remote rank.
type RemoteRank struct {
	Rank    int
	Carrier string // as in Path
	State   LinkState
	// Stats are of all links to the rank's number since the domain was made;
	// the rest is of the present one.
	link.Stats
	Credits, MaxCredits int
	// Heard is when its last control message came, in ns of CLOCK_MONOTONIC;
	// 0: none has.
	Heard int64
	Beats uint64
	// Ahead is how far its host's wall clock seemed ahead of this one's in the
	// last seconds, in ns, less the time that a beat takes at least.
	Ahead    int64
	HasAhead bool
}

// Totals is what has happened between hosts since the domain was made.
type Totals struct {
	// Ballots that this rank has begun; Agreed: changes of the member set that
	// it knows of.
	Ballots, Agreed uint64
	// Ended counts remote ranks with an ended process. Broken counts connections that
	// ended in another way than by a shutdown notice. TimesUnresponsive is how often a
	// rank was not heard for the bound: it may have come back.
	Ended, Broken, TimesUnresponsive uint64
	// Missing says which carriers do not work here, and why; "" if all do, or
	// none was needed.
	Missing string
}

// totals outlives the views of a domain.
type totals struct {
	ballots, agreed, ended, broken, timesUnresponsive atomic.Uint64

	mu    sync.Mutex                   // guards what follows; before view.mu
	base  [rankset.MaxRanks]link.Stats // of links that were replaced
	shown *view                        // the domain's; nil: every rank is local
	seen  []RemoteRank
}

// replace goes on to another rendezvous's view, and keeps the counts of links that belong
// to no rank any more.
func (t *totals) replace(before *rendezvousResult, v *view) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shown = v
	if before == nil {
		return
	}
	for rank, l := range before.links {
		if l != nil {
			t.base[rank].Add(l.Stats())
		}
	}
}

// countEnd counts the end of a connection to a remote rank.
func (v *view) countEnd(rank int, how link.Ending) {
	switch {
	case !v.live.Load() || !v.participants.remote().Has(rank):
	case how == link.EndExited:
		v.totals.ended.Add(1)
	case how == link.EndBroken:
		v.totals.broken.Add(1)
	}
}

// count counts what the agreement has done since the last time. The caller holds
// v.mu.
func (v *view) count() {
	c := v.agreement
	if v.live.Load() {
		v.totals.ballots.Add(c.ballots)
		v.totals.agreed.Add(c.agreed)
		v.totals.timesUnresponsive.Add(uint64(c.unresponsive.Minus(v.unresponsive).And(v.participants.remote()).Len()))
	}
	c.ballots, c.agreed, v.unresponsive = 0, 0, c.unresponsive
}

// controlStats is what the control connection to one rank has shown. Only the
// connections' goroutine writes.
type controlStats struct {
	beats     atomic.Uint64
	lastHeard atomic.Int64
	ahead     atomic.Int64 // the lowest bit is set: 0 is not known

	since      int64   // when the present window began
	best, last int64   // of the present window, and the one before
	known      [2]bool // whether they are there
}

// aheadWindow is how long a window is: in two of them clocks run apart by less
// than what a beat takes.
const aheadWindow = int64(5 * time.Second)

// observe notes that something has come.
func (s *controlStats) observe() {
	if now, err := sys.Monotonic(); err == nil {
		s.lastHeard.Store(now)
	}
}

// beat notes by how much a beat's time is ahead of the wall clock. The beat
// that took the least time is the one that is ahead most.
func (s *controlStats) beat(ahead int64) {
	s.beats.Add(1)
	now := s.lastHeard.Load()
	if now-s.since >= aheadWindow {
		s.last, s.known[1] = s.best, s.known[0] && now-s.since < 2*aheadWindow
		s.known[0], s.since = false, now
	}
	if !s.known[0] || ahead > s.best {
		s.best, s.known[0] = ahead, true
	}
	most := s.best
	if s.known[1] {
		most = max(most, s.last)
	}
	s.ahead.Store(most | 1)
}

// stateOf is how a remote rank is. The caller holds v.mu.
func (v *view) stateOf(rank int) LinkState {
	c, p := v.agreement, v.peers[rank]
	switch {
	case v.participants.present.Minus(c.set).Or(c.left).Has(rank):
		return LinkOut
	case p.lost.Load() != nil, c.gone.Has(rank):
		return LinkEnded
	case !carries(p.link.Load()):
		return LinkBroken
	case c.unresponsive.Has(rank):
		return LinkUnresponsive
	}
	return LinkUp
}

// remoteRanks appends what is seen of each remote rank. It allocates nothing where
// out has room. The caller holds v.totals.mu.
func (v *view) remoteRanks(out []RemoteRank) []RemoteRank {
	for rank := range v.participants.remote().All() {
		s, p := &v.controlStats[rank], v.peers[rank]
		f := RemoteRank{Rank: rank, Carrier: v.paths.carrier(rank), Heard: s.lastHeard.Load(), Beats: s.beats.Load()}
		f.Ahead = s.ahead.Load()
		f.HasAhead = f.Ahead != 0
		v.mu.Lock()
		f.State = v.stateOf(rank)
		v.mu.Unlock()
		f.Stats = v.totals.base[rank]
		if l := p.link.Load(); l != nil {
			f.Add(l.Stats())
			f.Credits, f.MaxCredits = l.Credits()
		}
		out = append(out, f)
	}
	return out
}

// report publishes what is seen to observers outside the group.
func (v *view) report() {
	t := v.totals
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.cfg.Report != nil && t.shown == v {
		t.seen = v.remoteRanks(t.seen[:0])
		v.cfg.Report(v.local.Control(v.participants.self), t.seen)
	}
}

// reportNone says that no rank is remote any more.
func (d *Domain) reportNone() {
	if d.cfg.Report != nil {
		d.cfg.Report(d.local.Control(d.local.Rank()), nil)
	}
}

// RemoteRanks is what is seen of each remote rank now, by number; none where all are
// local.
func (d *Domain) RemoteRanks() []RemoteRank {
	d.totals.mu.Lock()
	defer d.totals.mu.Unlock()
	if d.totals.shown == nil {
		return nil
	}
	return d.totals.shown.remoteRanks(nil)
}

// WhyNot says in words why a remote rank is not up; "" if it is.
func (d *Domain) WhyNot(rank int) string {
	p := d.peer(rank)
	if p == nil {
		return ""
	}
	if err := p.Lost(); err != nil {
		return err.Error()
	}
	if l := p.link.Load(); l != nil {
		if err := l.WhyNot(); err != nil && !errors.Is(err, errOut) {
			return err.Error()
		}
	}
	return ""
}

// WhyOut says in words why this rank has taken itself out of a group that may
// have gone on without it, or not; "" if it has not.
func (d *Domain) WhyOut() string {
	m := d.now.Load()
	if m == nil || m.view == nil {
		return ""
	}
	m.view.mu.Lock()
	defer m.view.mu.Unlock()
	if why := m.view.agreement.despaired; why != nil {
		return why.String()
	}
	return ""
}

func carries(l *link.Link) bool { return l != nil && l.Err() == nil && !l.Broken() }

// Totals is what has happened between hosts.
func (d *Domain) Totals() Totals {
	t := &d.totals
	return Totals{
		Ballots: t.ballots.Load(), Agreed: t.agreed.Load(), Ended: t.ended.Load(),
		Broken: t.broken.Load(), TimesUnresponsive: t.timesUnresponsive.Load(), Missing: d.carriers.missing(),
	}
}

func (c *carriers) missing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.failed, "; ")
}
