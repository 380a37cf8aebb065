package multihost

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// remoteRendezvous is the part of a rendezvous that goes over control connections:
//
//  1. every rank is connected with every other,
//  2. remote ranks tell one another which carriers they have,
//  3. each pair makes a link over the first that both have and over which bytes
//     arrive (see carrier_negotiation.go),
//  4. all say "ready", and go on when all have said so.
type remoteRendezvous struct {
	v        *view
	carriers *carriers
	until    time.Time
	cancel   <-chan struct{}

	up, ready, linked rankset.Set
	own, names        [rankset.MaxRanks][]string // for, and of, each remote rank
	offers            [rankset.MaxRanks][]byte
	tried             [rankset.MaxRanks]*string // "": bytes arrive there
	useless, reasons  [rankset.MaxRanks][]string
	links             []*link.Link // by rank
	refused           refusals     // before this rendezvous
}

func (g *remoteRendezvous) run(listener *link.Listener) error {
	others := map[int]link.Participant{}
	r := g.v.participants
	g.refused = refusalsOf(g.v.cfg.Counters)
	for rank := range r.present.Without(r.self).All() {
		others[rank] = r.infos[rank].participant()
	}
	controls, err := link.StartControls(link.ControlConfig{
		Rank: r.self, ID: r.infos[r.self].id, Keys: g.v.cfg.Keys, Protection: g.v.cfg.Protection,
		Counters: g.v.cfg.Counters, Tick: g.v.cfg.Heartbeat,
	}, listener, others, g.v)
	if err != nil {
		return err
	}
	g.v.controls.Store(controls)
	g.links = make([]*link.Link, len(r.infos))
	err = g.hold()
	g.v.rendezvous.Store(false)
	return err
}

func (g *remoteRendezvous) hold() error {
	r := g.v.participants
	others := r.present.Without(r.self)
	if err := g.await(others, &g.up, "did not come"); err != nil {
		return err
	}
	if !r.remote().Empty() {
		if err := g.makeLinks(); err != nil {
			return err
		}
	}
	g.notify(others, kindReady, nil)
	return g.await(others, &g.ready, "came but did not finish connecting")
}

var errCancelled = fmt.Errorf("listener: %w", transport.ErrClosed)

func (g *remoteRendezvous) notify(ranks rankset.Set, kind byte, text []byte) {
	m := append([]byte{kind}, text...)
	for rank := range ranks.All() {
		g.v.controls.Load().Send(rank, m[:min(len(m), link.MaxControlBytes)])
	}
}

func (g *remoteRendezvous) await(ranks rankset.Set, have *rankset.Set, complaint string) error {
	return g.awaitEach(ranks, func(rank int) bool { return have.Has(rank) }, complaint)
}

// awaitEach reads events until every rank satisfies done.
func (g *remoteRendezvous) awaitEach(ranks rankset.Set, done func(rank int) bool, complaint string) error {
	timer := time.NewTimer(time.Until(g.until))
	defer timer.Stop()
	for {
		var missing []string
		for rank := range ranks.All() {
			if !done(rank) {
				missing = append(missing, fmt.Sprintf("rank %d", rank))
			}
		}
		if missing == nil {
			return nil
		}
		select {
		case n := <-g.v.events:
			if err := g.take(n); err != nil {
				return err
			}
		case <-g.cancel:
			return errCancelled
		case <-timer.C:
			return fmt.Errorf("%s %s before the deadline%s: %w", strings.Join(missing, ", "), complaint, g.explainMissing(), os.ErrDeadlineExceeded)
		}
	}
}

func (g *remoteRendezvous) take(n event) error {
	switch n.kind {
	case eventUp:
		g.up = g.up.With(n.rank)
	case kindReady:
		g.ready = g.ready.With(n.rank)
	case kindOffer:
		g.offers[n.rank] = n.text
	case kindLinked:
		g.linked = g.linked.With(n.rank)
	case kindTried:
		text := string(n.text)
		if g.tried[n.rank] = &text; text == "" {
			g.v.peers[n.rank].works.Store(g.links[n.rank])
		}
	case kindCarriers:
		g.names[n.rank] = strings.Split(string(n.text), ",")
	case kindAbort:
		return fmt.Errorf("rank %d %w", n.rank, domain.GaveUp(n.text))
	case eventEnded:
		return g.ended(n)
	}
	return nil
}

// ended: a rank that has said "ready" may go again.
func (g *remoteRendezvous) ended(n event) error {
	switch {
	case g.ready.Has(n.rank) && n.how != link.EndBroken:
		return nil
	case n.how == link.EndExited && !g.up.Has(n.rank):
		return fmt.Errorf("rank %d ended the connection before either had shown a key, so it has other keys or %w: %w",
			n.rank, domain.ErrExited, n.err)
	case n.how == link.EndExited:
		return fmt.Errorf("rank %d ended while connecting: %w: %w", n.rank, domain.ErrExited, n.err)
	case n.how == link.EndShutdown:
		return fmt.Errorf("rank %d gave up connecting", n.rank)
	}
	return fmt.Errorf("rank %d cannot be reached: %w", n.rank, n.err)
}

// abandon tells every rank why and gives up what there is. The domain closes what does
// not come to rest in time.
func (g *remoteRendezvous) abandon(d *Domain, reason error) {
	g.v.rendezvous.Store(false)
	if controls := g.v.controls.Load(); controls != nil {
		g.notify(controls.Ranks(), kindAbort, domain.PackReason(reason))
	}
	d.keep(g.v, g.links)
}

// drainFor bounds how long a link that is given up may take to come to rest.
const drainFor = 10 * time.Second

// close ends a view: first the connections, so that no rank waits for this one, then the
// links. It may be called again, for links that had something outstanding at the end of
// their time.
func (v *view) close(links []*link.Link, drainFor time.Duration) (err error) {
	if controls := v.controls.Load(); controls != nil {
		err = controls.Close()
	}
	until := time.Now().Add(drainFor)
	for _, l := range links {
		if l != nil {
			err = errors.Join(err, l.Close(until))
		}
	}
	return err
}
