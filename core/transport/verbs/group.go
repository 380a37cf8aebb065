package verbs

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sweep"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// maxNICs bounds the ports of a group.
const maxNICs = 16

// Group is the ports that a configuration allows, as one transport. An endpoint is on one
// of them: the best that is usable when it is made. The next one is opened when all
// better ones are down; regions are registered on every open one. A port that fails loses
// its own endpoints only: new ones go to another port, and come back when it is active
// again.
type Group struct {
	lib     *libibverbs.Library
	config  Config
	members []*member // the best first
	limits  transport.Limits
	sleeper *sys.Readable

	// changing is held by the goroutine that opens or closes a port or a region. Those
	// calls may block; Poll, Wait, Wake and posts never take it.
	changing sync.Mutex
	regions  map[*groupRegion]struct{}
	// abandoned could not be registered with every port, nor ended; see endAbandoned.
	abandoned *groupRegion
	closed    atomic.Bool
	sweeper   *sweep.Sweeper // of what is left over

	waiting sync.Mutex    // held by the one goroutine in Wait
	bell    chan struct{} // has something when Wake was called; for a caller that waits while no port is open
	next    int           // of Poll: the port that is next
	// stranded says why no port was usable when an endpoint was wanted; nil:
	// one was, or PollEvents has said so.
	stranded atomic.Pointer[string]
}

// member is one port of a group.
type member struct {
	nic   NIC
	index int
	tr    atomic.Pointer[Transport] // nil: it is not open

	// Guarded by Group.changing.
	numOpens uint64
	refused  error // why it could not be opened, and when
	triedAt  time.Time
	leftover *Transport // opened in vain, and not closed yet; see endLeftover

	mu     sync.Mutex
	before uint64 // failures of what was opened earlier
}

// reopenAfter is how long a port that could not be opened is left alone.
const reopenAfter = time.Second

// NewGroup opens the best port that works. The error wraps transport.ErrNotSupported when
// this host has no libibverbs, no device, or none with an active port; it wraps
// transport.ErrNoResource when the device has nothing left.
func NewGroup(config Config) (*Group, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	lib, err := load()
	if err != nil {
		return nil, err
	}
	nics, err := choices(lib, &config)
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	return openGroup(lib, config, nics)
}

func openGroup(lib *libibverbs.Library, config Config, nics []NIC) (g *Group, err error) {
	g = &Group{lib: lib, config: config, regions: map[*groupRegion]struct{}{}, bell: make(chan struct{}, 1)}
	for i, nic := range nics[:min(len(nics), maxNICs)] {
		g.members = append(g.members, &member{nic: nic, index: i})
	}
	if g.sleeper, err = sys.NewReadable(); err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	sweeper := sweep.New("verbs sweep", sweepEvery, g.sweep)
	g.sweeper = sweeper
	defer func() {
		if err != nil {
			sweeper.Stop() // g is nil then
		}
	}()
	g.changing.Lock()
	defer g.changing.Unlock()
	for _, m := range g.members {
		if t := g.open(m); t != nil {
			g.limits = t.Limits()
			return g, nil
		}
	}
	var errs several
	for _, m := range g.members {
		errs = append(errs, m.refused)
	}
	return nil, errors.Join(errs, g.sleeper.Close())
}

// open opens a port and registers all regions there; nil if it does not work,
// or did not a moment ago.
func (g *Group) open(m *member) *Transport {
	if m.refused != nil && time.Since(m.triedAt) < reopenAfter {
		return nil
	}
	t, err := g.tryOpen(m)
	if err != nil {
		m.refused, m.triedAt = err, time.Now()
		return nil
	}
	m.refused = nil
	m.tr.Store(t)
	g.Wake() // a Wait under way does not know it
	return t
}

func (g *Group) tryOpen(m *member) (*Transport, error) {
	if err := g.endLeftover(m); err != nil {
		return nil, err
	}
	config := g.config
	config.Device, config.Port = m.nic.Device, m.nic.Port
	t, err := openAs(g.lib, config, m)
	if err != nil {
		return nil, err
	}
	if err = g.fits(t); err == nil {
		err = g.registerAll(t)
	}
	if err == nil {
		err = g.sleeper.Add(t.wait.poller.Raw(), uint(m.index))
	}
	if err != nil {
		m.leftover = t
		err = errors.Join(err, g.endLeftover(m))
		g.sweepLater()
		return nil, err
	}
	m.numOpens++ // what has failed has numbered no endpoint
	return t, nil
}

// several are the errors of several ports, in one line.
type several []error

func (s several) Error() string {
	texts := make([]string, 0, len(s))
	for _, err := range s {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

func (s several) Unwrap() []error { return s }

// fits refuses a port that can do less than the group has promised.
func (g *Group) fits(t *Transport) error {
	has, want := t.Limits(), g.limits
	if has.NumPieces < want.NumPieces || has.InlineBytes < want.InlineBytes || has.MaxRequestBytes < want.MaxRequestBytes {
		return fmt.Errorf("verbs: %s can do %d pieces, %d bytes inline and %d in one request, the port before it %d, %d and %d",
			t.Device(), has.NumPieces, has.InlineBytes, has.MaxRequestBytes, want.NumPieces, want.InlineBytes, want.MaxRequestBytes)
	}
	return nil
}

// maxLooks bounds how often in a row the ports are looked at while they change.
const maxLooks = 4

// NewEndpoint makes a queue pair on the best port that is usable. If none is, it reads
// what the ports have to say, due or not, and looks again. If nothing came while it did,
// all of them were down at one moment, and PollEvents says so; else the caller may ask
// again.
func (g *Group) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	e, down, err := g.onBest(spec)
	for look := 1; down != nil && look < maxLooks; look++ {
		before := g.changes()
		g.takeEvents()
		if e, down, err = g.onBest(spec); down != nil && g.changes() == before {
			g.strand(down.Error())
			break
		}
	}
	if down != nil {
		return nil, fmt.Errorf("new endpoint: no port is usable: %w: %w", transport.ErrNoResource, down)
	}
	return e, err
}

// onBest makes a queue pair on the best port that is usable. If none is, down
// says why each is not.
func (g *Group) onBest(spec transport.EndpointSpec) (e transport.Endpoint, down several, err error) {
	for _, m := range g.members {
		t, err := g.usable(m)
		if err == nil {
			if e, err = t.NewEndpoint(spec); err == nil || !t.down.Load() {
				return e, nil, err
			}
		}
		if g.closed.Load() {
			return nil, nil, transport.ErrClosed
		}
		down = append(down, err)
	}
	return nil, down, nil
}

// usable is a port that is not down, opened if it was not.
func (g *Group) usable(m *member) (*Transport, error) {
	if t := m.tr.Load(); t != nil && !t.down.Load() {
		return t, nil
	}
	g.changing.Lock()
	defer g.changing.Unlock()
	if g.closed.Load() {
		return nil, transport.ErrClosed
	}
	t := m.tr.Load()
	switch {
	case t != nil && !t.down.Load():
		return t, nil
	case t != nil && !(t.fatal.Load() && g.discard(m, t)):
		return nil, fmt.Errorf("%s: %s", t.Device(), t.whyDown())
	}
	if t = g.open(m); t == nil {
		return nil, fmt.Errorf("%v: %w", m.nic, m.refused)
	}
	return t, nil
}

// discard closes a port with a lost device, once nothing of it is in use, so that it can
// be opened again.
func (g *Group) discard(m *member, t *Transport) bool {
	if !t.isIdle() || g.endAbandoned() != nil {
		return false
	}
	for r := range g.regions {
		if r.leave(m.index) != nil {
			return false
		}
	}
	if t.Close() != nil {
		return false
	}
	m.mu.Lock()
	m.before += t.losses.Load()
	m.tr.Store(nil)
	m.mu.Unlock()
	return true
}

// each calls f with every open port, the best first.
func (g *Group) each(f func(t *Transport)) {
	for _, m := range g.members {
		if t := m.tr.Load(); t != nil {
			f(t)
		}
	}
}

// preferred is the port that new endpoints get; the first open one if none is
// usable.
func (g *Group) preferred() (best *Transport) {
	for _, m := range g.members {
		t := m.tr.Load()
		if t != nil && !t.down.Load() {
			return t
		}
		if best == nil {
			best = t
		}
	}
	return best
}

// ConnectsUnproven marks a carrier that connects to any address that it is given: the
// identity of the peer is not proven.
func (g *Group) ConnectsUnproven() {}

// Name is the carrier's.
func (g *Group) Name() string { return "verbs" }

// Device names the port that new endpoints get.
func (g *Group) Device() string {
	if t := g.preferred(); t != nil {
		return t.Device()
	}
	return g.members[0].nic.String()
}

// Limits are those of the port that was opened first. NumEndpoints holds for
// each port.
func (g *Group) Limits() transport.Limits { return g.limits }

// NICState is what a port of a group is up to.
type NICState struct {
	NIC    NIC
	Open   bool
	Usable bool
	// Why says why it is not usable, or cannot be opened; "" otherwise.
	Why string
	// NumFailures counts how often it went from usable to not.
	NumFailures uint64
	// NumEndpoints are not closed.
	NumEndpoints int
	// DC says whether the port has dynamically connected queue pairs.
	DC DC
}

// NICs are the ports, the best first.
func (g *Group) NICs() (all []NICState) {
	g.changing.Lock()
	defer g.changing.Unlock()
	for _, m := range g.members {
		s := NICState{NIC: m.nic}
		m.mu.Lock()
		t := m.tr.Load()
		s.NumFailures = m.before
		m.mu.Unlock()
		if m.refused != nil {
			s.Why = m.refused.Error()
		}
		if t != nil {
			s.Open, s.Usable, s.Why = true, !t.down.Load(), t.whyDown()
			s.NumFailures += t.losses.Load()
			s.DC = t.dc
			t.mu.Lock()
			s.NumEndpoints = t.numEndpoints
			t.mu.Unlock()
		}
		all = append(all, s)
	}
	return all
}

// Remarks says what people should know about ports that are, or were, not
// usable; "" if there is nothing.
func (g *Group) Remarks() string {
	var texts []string
	for _, s := range g.NICs() {
		switch {
		case s.Why != "":
			texts = append(texts, fmt.Sprintf("%v is not usable (%d failures): %s", s.NIC, s.NumFailures, s.Why))
		case s.NumFailures > 0:
			texts = append(texts, fmt.Sprintf("%v is usable again after %d failures", s.NIC, s.NumFailures))
		}
		if g.config.DC && s.Open {
			texts = append(texts, fmt.Sprintf("%v: %v", s.NIC, s.DC))
		}
	}
	return strings.Join(texts, "; ")
}

// close is Close but for the sweeper, whose call it would wait for.
func (g *Group) close() error {
	g.changing.Lock()
	defer g.changing.Unlock()
	if g.closed.Load() {
		return nil
	}
	var err error
	g.each(func(t *Transport) { err = errors.Join(err, t.busy()) })
	if len(g.regions) > 0 {
		err = errors.Join(err, fmt.Errorf("close: %d regions are not closed: %w", len(g.regions), transport.ErrBusy))
	}
	if err == nil {
		err = g.endRests()
	}
	if err != nil {
		return err
	}
	g.closed.Store(true)
	g.Wake() // the goroutine that is woken sees that
	g.each(func(t *Transport) { err = errors.Join(err, t.Close()) })
	g.waiting.Lock() // the goroutine that waits has been woken
	defer g.waiting.Unlock()
	return errors.Join(err, g.sleeper.Close())
}

var _ transport.Transport = (*Group)(nil)
