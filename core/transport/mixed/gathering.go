package mixed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// gathering is the part of a meeting that goes over control connections:
//
//  1. everybody is connected with everybody,
//  2. far ranks tell one another which carriers they have,
//  3. each pair makes a link over the first that both have and over which bytes
//     arrive: a carrier may be there and not lead to the other rank,
//  4. all say "ready", and go on when all have said so.
type gathering struct {
	v        *view
	carriers *carriers
	until    time.Time
	cancel   <-chan struct{}

	up, ready, linked uint64
	names             [transport.MaxRanks][]string // of far ranks
	offers            [transport.MaxRanks][]byte
	tried             [transport.MaxRanks]*string // "": bytes arrive there
	useless, reasons  [transport.MaxRanks][]string
	links             []*link.Link // by rank
	refused           refusals     // before this meeting
}

func (g *gathering) run(entrance *link.Entrance) error {
	others := map[int]link.Attendee{}
	r := g.v.roster
	g.refused = refusalsOf(g.v.cfg.Counters)
	for rank := range members(r.present &^ (1 << r.self)) {
		others[rank] = link.Attendee{ID: r.infos[rank].id, Addr: r.infos[rank].Addr}
	}
	controls, err := link.StartControls(link.ControlConfig{
		Rank: r.self, ID: r.infos[r.self].id, Keys: g.v.cfg.Keys, Counters: g.v.cfg.Counters, Tick: g.v.cfg.Heartbeat,
	}, entrance, others, g.v)
	if err != nil {
		return err
	}
	g.v.controls.Store(controls)
	g.links = make([]*link.Link, len(r.infos))
	err = g.hold()
	g.v.meeting.Store(false)
	if err == nil {
		g.v.remakeLinks(g.links)
	}
	return err
}

func (g *gathering) hold() error {
	r := g.v.roster
	others := r.present &^ (1 << r.self)
	if err := g.await(others, &g.up, "did not come"); err != nil {
		return err
	}
	if r.far() != 0 {
		if err := g.makeLinks(); err != nil {
			return err
		}
	}
	g.tell(others, kindReady, nil)
	return g.await(others, &g.ready, "came but did not finish connecting")
}

func (g *gathering) makeLinks() error {
	far := g.v.roster.far()
	names, failed, err := g.carriers.open(g.v.roster.turn())
	if err != nil {
		return err
	}
	g.tell(far, kindCarriers, []byte(strings.Join(names, ",")))
	err = g.awaitEach(far, func(rank int) bool { return g.names[rank] != nil }, "came but named no carrier")
	for missing := far; missing != 0 && err == nil; {
		missing, err = g.makeSome(missing, names)
	}
	if err != nil {
		return err
	}
	for rank := range members(far) {
		g.explain(rank, failed)
	}
	return nil
}

// makeSome makes links over the next carriers and returns the ranks that they
// do not reach.
func (g *gathering) makeSome(ranks uint64, names []string) (missing uint64, err error) {
	for rank := range members(ranks) {
		if err := g.makeLink(rank, names); err != nil {
			return 0, err
		}
	}
	err = g.awaitEach(ranks, func(rank int) bool { return g.offers[rank] != nil }, "came but made no link")
	if err == nil {
		err = g.onLinks(ranks, func(rank int, l *link.Link) error { return l.Connect(g.offers[rank], g.until) })
	}
	if err != nil {
		return 0, err
	}
	for rank := range members(ranks) {
		g.offers[rank] = nil
	}
	g.tell(ranks, kindLinked, nil)
	if err := g.await(ranks, &g.linked, "came but did not connect its link"); err != nil {
		return 0, err
	}
	g.linked &^= ranks
	return g.tryLinks(ranks)
}

// tryLinks finds out on which links bytes arrive, in both directions: the two
// sides of each come to the same result. What does not work is given up.
func (g *gathering) tryLinks(ranks uint64) (missing uint64, err error) {
	var mine [transport.MaxRanks]error
	err = g.onLinks(ranks, func(rank int, l *link.Link) error {
		mine[rank] = l.Try(g.until)
		return nil
	})
	if err != nil {
		return 0, err
	}
	for rank := range members(ranks) {
		g.tell(1<<rank, kindTried, why(mine[rank]))
	}
	if err := g.awaitEach(ranks, func(rank int) bool { return g.tried[rank] != nil }, "came but did not try its link"); err != nil {
		return 0, err
	}
	for rank := range members(ranks) {
		theirs := *g.tried[rank]
		if g.tried[rank] = nil; mine[rank] == nil && theirs == "" {
			continue
		}
		missing |= 1 << rank
		if err := g.giveUp(rank, mine[rank], theirs); err != nil {
			return 0, err
		}
	}
	return missing, nil
}

func why(err error) []byte {
	if err == nil {
		return nil
	}
	return []byte(err.Error())
}

// giveUp closes a link that does not work, and remembers its carrier.
func (g *gathering) giveUp(rank int, mine error, theirs string) error {
	var reasons []string
	if mine != nil {
		reasons = append(reasons, mine.Error())
	}
	if theirs != "" {
		reasons = append(reasons, fmt.Sprintf("rank %d says: %s", rank, theirs))
	}
	name, _ := g.links[rank].Carrier()
	g.useless[rank] = append(g.useless[rank], name)
	g.reasons[rank] = append(g.reasons[rank], reasons...)
	if err := g.links[rank].Close(g.until); err != nil {
		return err
	}
	g.links[rank] = nil
	g.v.peers[rank].link.Store(nil)
	return nil
}

func (g *gathering) makeLink(rank int, names []string) (err error) {
	lower, higher := names, g.names[rank]
	if rank < g.v.roster.self {
		lower, higher = higher, lower
	}
	name := choose(without(lower, g.useless[rank]), higher)
	switch {
	case name == "" && g.useless[rank] != nil:
		return fmt.Errorf("rank %d cannot be reached: %s", rank, strings.Join(g.reasons[rank], "; "))
	case name == "":
		return fmt.Errorf("rank %d has carriers %v, this rank has %v: %w", rank, g.names[rank], names, transport.ErrMismatch)
	}
	poller := g.carriers.poller(name)
	l, err := link.NewLink(poller, rank, rand.Uint32(), g.v.cfg.Link, g.v.cfg.rings(poller.Carrier()))
	if err != nil {
		return err
	}
	g.links[rank] = l
	g.v.peers[rank].link.Store(l)
	g.tell(1<<rank, kindOffer, l.Offer())
	return nil
}

func without(names, useless []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(useless, name) })
}

// explain is for Domain.Paths.
func (g *gathering) explain(rank int, failed string) {
	p := &g.v.paths[rank]
	p.Carrier, p.Device = g.links[rank].Carrier()
	switch {
	case g.reasons[rank] != nil:
		p.Why += "; " + strings.Join(g.reasons[rank], "; ")
	case failed != "":
		p.Why += "; " + failed
	case len(g.names[rank]) > 0 && g.names[rank][0] != p.Carrier:
		p.Why += "; the first carrier that both have"
	}
	if remarks := g.links[rank].Remarks(); remarks != "" {
		p.Why += "; " + remarks
	}
}

// onLinks does something with the links of ranks, at once: each waits for its
// peer. What ends the meeting, or one link, ends the others' waiting.
func (g *gathering) onLinks(ranks uint64, do func(rank int, l *link.Link) error) error {
	results := make(chan error, transport.MaxRanks)
	num := 0
	for rank := range members(ranks) {
		num++
		l := g.links[rank]
		safego.Go("link connect", func() { results <- do(rank, l) }, func(err error) { results <- err })
	}
	return g.awaitLinks(results, num)
}

// awaitLinks returns when no link uses the gathering any more.
func (g *gathering) awaitLinks(results <-chan error, num int) (first error) {
	notes, cancel := g.v.notes, g.cancel
	for num > 0 {
		var err error
		select {
		case err = <-results:
			num--
		case n := <-notes:
			err = g.take(n)
		case <-cancel:
			err = errCancelled
		}
		if err != nil && first == nil {
			first, notes, cancel = err, nil, nil
			g.breakLinks(err)
		}
	}
	return first
}

func (g *gathering) breakLinks(cause error) {
	for _, l := range g.links {
		if l != nil {
			l.Break(cause)
		}
	}
}

var errCancelled = fmt.Errorf("listener: %w", transport.ErrClosed)

func (g *gathering) tell(ranks uint64, kind byte, text []byte) {
	m := append([]byte{kind}, text...)
	for rank := range members(ranks) {
		g.v.controls.Load().Send(rank, m[:min(len(m), link.MaxControlBytes)])
	}
}

func (g *gathering) await(ranks uint64, have *uint64, complaint string) error {
	return g.awaitEach(ranks, func(rank int) bool { return *have>>rank&1 == 1 }, complaint)
}

// awaitEach reads notes until every rank satisfies done.
func (g *gathering) awaitEach(ranks uint64, done func(rank int) bool, complaint string) error {
	timer := time.NewTimer(time.Until(g.until))
	defer timer.Stop()
	for {
		var late []string
		for rank := range members(ranks) {
			if !done(rank) {
				late = append(late, fmt.Sprintf("rank %d", rank))
			}
		}
		if late == nil {
			return nil
		}
		select {
		case n := <-g.v.notes:
			if err := g.take(n); err != nil {
				return err
			}
		case <-g.cancel:
			return errCancelled
		case <-timer.C:
			return fmt.Errorf("%s %s before the deadline%s: %w", strings.Join(late, ", "), complaint, g.crowded(), os.ErrDeadlineExceeded)
		}
	}
}

func (g *gathering) take(n note) error {
	switch n.kind {
	case noteUp:
		g.up |= 1 << n.rank
	case kindReady:
		g.ready |= 1 << n.rank
	case kindOffer:
		g.offers[n.rank] = n.text
	case kindLinked:
		g.linked |= 1 << n.rank
	case kindTried:
		text := string(n.text)
		g.tried[n.rank] = &text
	case kindCarriers:
		g.names[n.rank] = strings.Split(string(n.text), ",")
	case kindAbort:
		return fmt.Errorf("rank %d gave up connecting: %w", n.rank, transport.UnpackReason(n.text))
	case noteEnded:
		return g.ended(n)
	}
	return nil
}

// ended: who has said "ready" may go again.
func (g *gathering) ended(n note) error {
	switch {
	case g.ready>>n.rank&1 == 1 && n.how != link.EndBroken:
		return nil
	case n.how == link.EndDead && g.up>>n.rank&1 == 0:
		return fmt.Errorf("rank %d ended the connection before either had shown a key, so it has other keys or %w: %w",
			n.rank, transport.ErrDead, n.err)
	case n.how == link.EndDead:
		return fmt.Errorf("rank %d ended while connecting: %w: %w", n.rank, transport.ErrDead, n.err)
	case n.how == link.EndBye:
		return fmt.Errorf("rank %d gave up connecting", n.rank)
	}
	return fmt.Errorf("rank %d cannot be reached: %w", n.rank, n.err)
}

// abandon tells everybody why and gives up what there is. What does not come to
// rest in time is the domain's to close.
func (g *gathering) abandon(d *Domain, reason error) {
	g.v.meeting.Store(false)
	if controls := g.v.controls.Load(); controls != nil {
		g.tell(controls.Ranks(), kindAbort, transport.PackReason(reason))
	}
	d.keep(g.v, g.links)
}

// drainFor bounds how long a link that is given up may take to come to rest.
const drainFor = 10 * time.Second

// close ends a view: first the connections, so that nobody waits for this
// rank, then the links. It may be called again, for links that owed something
// at the end of their time.
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
