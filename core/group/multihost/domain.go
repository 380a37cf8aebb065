package multihost

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sweep"
	"github.com/moewire/moewire/core/link"
)

// Domain implements domain.Domain: local ranks by shared memory, remote ones by
// Remote. What package shm says of words, segments and Close holds here, too.
type Domain struct {
	cfg       Config
	local     domain.Domain
	carriers  *carriers
	links     *link.Set
	remote    *remoteRanks
	totals    totals
	drain     time.Duration // drainFor, but in tests
	sweeping  sync.Mutex    // one sweep at a time; never taken with mu
	sweeper   *sweep.Sweeper
	now       atomic.Pointer[rendezvousResult]
	hadRemote atomic.Bool // the group has had remote ranks

	mu       sync.Mutex // guards what follows
	pages    [rankset.MaxRanks]domain.Segment
	change   *Change
	closed   bool
	draining sync.WaitGroup // of views that were replaced
	leftover []leftover
}

// leftover is what an earlier rendezvous has made, and what had completions outstanding
// at the end of its time. Its memory is kept as long.
type leftover struct {
	view  *view
	links []*link.Link
}

// rendezvousResult is what the last rendezvous has made; it never changes.
type rendezvousResult struct {
	participants *participants
	view         *view // nil: every rank is local
	word         domain.MemberWord
	paths        *pathTable
	links        []*link.Link
}

var _ domain.Domain = (*Domain)(nil)

func newDomain(cfg Config, local domain.Domain) *Domain {
	d := &Domain{cfg: cfg, local: local, drain: drainFor}
	d.carriers = &carriers{cfg: &d.cfg, ring: func() { local.Wake(local.Rank()) }}
	d.links = link.NewSet(cfg.Link, newPrivate, d.lost, cfg.Heartbeat)
	d.remote = &remoteRanks{Set: d.links, d: d}
	d.sweeper = sweep.New("multihost sweep", sweepEvery, func() bool { return d.sweep() == 0 })
	return d
}

// lost is why a remote rank is known to be lost.
func (d *Domain) lost(rank int) error {
	if p := d.Process(rank); p != nil {
		return p.Lost()
	}
	return nil
}

// gather holds the part of a rendezvous that is between hosts. Nothing of the domain
// changes. It returns nils when every rank is local.
func (d *Domain) gather(l *Listener, r *participants, until time.Time) (*view, []*link.Link, error) {
	if r.remote().Empty() {
		return nil, nil, nil
	}
	if n := d.sweep(); n >= maxLeftovers {
		return nil, nil, fmt.Errorf("links of %d earlier rendezvous still have outstanding completions, at most %d may: a device does not end what it was given", n, maxLeftovers-1)
	}
	v := newView(&d.cfg, d.local, r)
	v.totals, v.carriers = &d.totals, d.carriers
	v.paths = &pathTable{all: r.explain()}
	for rank := range r.remote().All() {
		page, err := d.page(rank)
		if err != nil {
			return nil, nil, err
		}
		v.peers[rank] = &peer{rank: rank, control: page}
	}
	g := &remoteRendezvous{v: v, carriers: d.carriers, until: until, cancel: l.cancel}
	listener := l.controlListener
	l.controlListener = nil // the connections' now
	if err := g.run(listener); err != nil {
		g.abandon(d, err)
		return nil, nil, err
	}
	return v, g.links, nil
}

// yieldListener frees a port that was given: the next rendezvous needs it. Present
// control connections that break are not reconnected then, if others dial.
func (d *Domain) yieldListener() {
	if m := d.now.Load(); m.view != nil {
		m.view.controls.Load().CloseListener()
	}
}

// page is where the words of a remote rank are kept, whichever process has its number.
func (d *Domain) page(rank int) (domain.Segment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pages[rank] == nil {
		page, err := newPrivate(d.cfg.Shm.ControlBytes)
		if err != nil {
			return nil, err
		}
		d.pages[rank] = page
	}
	return d.pages[rank], nil
}

// install makes a rendezvous's result the domain's. It cannot fail.
func (d *Domain) install(r *participants, v *view, links []*link.Link) {
	before := d.now.Load()
	m := &rendezvousResult{participants: r, view: v, word: d.local.Members(), paths: &pathTable{all: r.explain()}, links: links}
	if v != nil {
		d.hadRemote.Store(true)
		m.word = &word{page: m.word, v: v, self: rankset.Of(r.self)}
		m.paths = v.paths
		for rank := range r.remote().All() {
			if before == nil || !r.sameProcess(before.participants, rank) {
				wipe(v.peers[rank].control)
			}
		}
	}
	d.now.Store(m)
	d.totals.replace(before, v)
	d.links.Put(links)
	if v != nil {
		v.live.Store(true)
		v.act(func(c *agreement, now time.Time) { c.start(now) })
	}
	if before != nil && before.view != nil {
		before.view.act(func(c *agreement, _ time.Time) { c.over(r.present) })
		if v == nil {
			d.reportNone()
		}
		d.retire(before)
	}
}

// wipe empties a page, word by word: a reader may still look at it.
func wipe(page domain.Segment) {
	for off := int64(0); off < page.SizeBytes(); off += 8 {
		page.Word(off).Store(0)
	}
}

// retire closes what an earlier rendezvous has made, in the background: its links
// have to come to rest.
func (d *Domain) retire(m *rendezvousResult) {
	d.draining.Add(1)
	safego.Go("multihost drain", func() { defer d.draining.Done(); d.keep(m.view, m.links) }, nil)
}

// keep closes what a rendezvous has made, and remembers what does not end in time: for
// the sweeper, the next rendezvous and Close.
func (d *Domain) keep(v *view, links []*link.Link) {
	d.keepFor(v, links, d.drain)
}

func (d *Domain) keepFor(v *view, links []*link.Link, most time.Duration) {
	if v.close(links, most) == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leftover = append(d.leftover, leftover{v, links})
	d.sweeper.Begin()
}

// maxLeftovers bounds the rendezvous with links that stay because they do not come to
// rest: each holds rings of memory that a device may still use. The next rendezvous may
// be far away, and each holds queue pairs, so all are looked at every sweepEvery.
const (
	maxLeftovers = 4
	sweepEvery   = 5 * time.Second
)

// sweep closes what has come to rest since it was kept, and returns how much has not.
func (d *Domain) sweep() int {
	d.sweeping.Lock()
	defer d.sweeping.Unlock()
	d.mu.Lock()
	rest := d.leftover
	d.leftover = nil
	d.mu.Unlock()
	for _, l := range rest {
		d.keepFor(l.view, l.links, 0)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.leftover)
}

// Rank is this rank's number.
func (d *Domain) Rank() int { return d.local.Rank() }

// NumRanks is the size of the group.
func (d *Domain) NumRanks() int { return d.local.NumRanks() }

// Members is the group's membership word, as this host knows it.
func (d *Domain) Members() domain.MemberWord { return d.now.Load().word }

// Present has the ranks of the last rendezvous, local and remote.
func (d *Domain) Present() rankset.Set { return d.now.Load().participants.present }

// peer is a remote rank's incarnation; nil for others.
func (d *Domain) peer(rank int) *peer {
	if m := d.now.Load(); m != nil && m.view != nil {
		return m.view.peers[rank]
	}
	return nil
}

// Control is a local rank's control region, or this process's page for a remote
// one.
func (d *Domain) Control(rank int) domain.Segment {
	if p := d.peer(rank); p != nil {
		return p.control
	}
	return d.local.Control(rank)
}

// Process is the incarnation behind a rank's number.
func (d *Domain) Process(rank int) domain.Process {
	if p := d.peer(rank); p != nil {
		return p
	}
	return d.local.Process(rank)
}

// AddSlab makes a slab that local ranks can map.
func (d *Domain) AddSlab(sizeBytes int64) (int, domain.Segment, error) {
	return d.local.AddSlab(sizeBytes)
}

// Slab returns a local rank's slab.
func (d *Domain) Slab(rank, id int) (domain.Segment, error) {
	if rank >= 0 && rank < d.NumRanks() && d.peer(rank) != nil {
		return nil, fmt.Errorf("multihost: slab %d of rank %d: %w", id, rank, errRemote)
	}
	return d.local.Slab(rank, id)
}

var errRemote = errors.New("the rank's memory cannot be mapped")

// CheckOwn says whether this rank's memory still has the words that the domain has stored.
func (d *Domain) CheckOwn() error {
	if local, ok := d.local.(interface{ CheckOwn() error }); ok {
		return local.CheckOwn()
	}
	return nil
}

// RestoreOwn stores them again.
func (d *Domain) RestoreOwn() {
	if local, ok := d.local.(interface{ RestoreOwn() }); ok {
		local.RestoreOwn()
	}
}

// Wake ends the sleep of a local rank. Remote ones are woken by messages.
func (d *Domain) Wake(rank int) {
	if d.peer(rank) == nil {
		d.local.Wake(rank)
	}
}

// PrepareSleep announces a sleep.
func (d *Domain) PrepareSleep() uint32 { return d.local.PrepareSleep() }

// CancelSleep takes the announcement back.
func (d *Domain) CancelSleep() { d.local.CancelSleep() }

// Sleep blocks until this rank is woken.
func (d *Domain) Sleep(ticket uint32, t time.Duration) { d.local.Sleep(ticket, t) }

// Yield gives the processor away.
func (d *Domain) Yield() { d.local.Yield() }

// Remote reaches the remote ranks; nil when there are none.
func (d *Domain) Remote() domain.Remote {
	if d.links.Ranks().Empty() {
		return nil
	}
	return d.remote
}

// remoteRanks are the links; how old words are the control connections know.
type remoteRanks struct {
	*link.Set
	d *Domain
}

// WordAge grows while this process gets no processor for them.
func (f *remoteRanks) WordAge() time.Duration {
	if m := f.d.now.Load(); m != nil && m.view != nil {
		return m.view.wordAge()
	}
	return f.Set.WordAge()
}

// Paths says how each rank is reached, and why so.
func (d *Domain) Paths() []Path { return d.now.Load().paths.list() }

// GroupID names the part of the group on this host for observers outside of it.
func (d *Domain) GroupID() uint64 {
	if g, ok := d.local.(interface{ GroupID() uint64 }); ok {
		return g.GroupID()
	}
	return 0
}

// Liveness says how this rank would notice a rank's death, in words.
func (d *Domain) Liveness(rank int) string {
	if d.peer(rank) != nil {
		return fmt.Sprintf("end of the control connection; after %v of silence by agreement", d.cfg.Bound)
	}
	if l, ok := d.local.(interface{ Liveness(int) string }); ok {
		return l.Liveness(rank)
	}
	return "unknown"
}

// Close leaves nothing behind but retained segments. It sends a shutdown notice to remote
// ranks, so that they do not take this for a death.
func (d *Domain) Close() error {
	d.mu.Lock()
	change, closed := d.change, d.closed
	d.closed, d.change = true, nil
	d.mu.Unlock()
	if closed {
		return nil
	}
	if change != nil {
		change.giveUp()
	}
	var err error
	if m := d.now.Load(); m != nil && m.view != nil {
		err = m.view.close(d.links.Put(nil), drainFor)
	}
	d.draining.Wait()
	d.sweeper.Stop()
	for _, l := range d.leftover {
		err = errors.Join(err, l.view.close(l.links, drainFor))
	}
	err = errors.Join(err, d.carriers.close(), d.local.Close())
	for _, page := range d.pages {
		if page != nil {
			page.Release()
		}
	}
	return err
}
