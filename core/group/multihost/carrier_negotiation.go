package multihost

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// This file is the carrier negotiation: the part of a rendezvous in which each pair of
// remote ranks finds the carrier that connects them. A carrier that both have may have
// nothing left for a link, may not connect, or may lead nowhere. While they have another,
// that is next, and both sides know why. Only sockets, which are last, wait in Connect
// for the peer to do the same: a side that does not connect delays no other.

func (g *remoteRendezvous) makeLinks() error {
	remote := g.v.participants.remote()
	names, failed, err := g.carriers.open(g.v.participants.turn())
	if err != nil {
		return err
	}
	for rank := range remote.All() {
		g.own[rank] = g.carriers.without(rank, g.v.participants.infos[rank].Shm.Identity, names)
		g.notify(rankset.Of(rank), kindCarriers, []byte(strings.Join(g.own[rank], ",")))
	}
	err = g.awaitEach(remote, func(rank int) bool { return g.names[rank] != nil }, "came but named no carrier")
	for missing := remote; !missing.Empty() && err == nil; {
		missing, err = g.makeSome(missing)
	}
	if err != nil {
		return err
	}
	for rank := range remote.All() {
		g.carriers.latchPair(rank, g.v.participants.infos[rank].Shm.Identity, g.useless[rank], g.reasons[rank])
		g.explain(rank, failed)
	}
	return nil
}

// makeSome makes links over the next carriers and returns the ranks that they
// do not reach.
func (g *remoteRendezvous) makeSome(ranks rankset.Set) (missing rankset.Set, err error) {
	var mine [rankset.MaxRanks]error // why this side has no link
	for rank := range ranks.All() {
		if mine[rank], err = g.makeLink(rank); err != nil {
			return rankset.Set{}, err
		}
	}
	err = g.awaitEach(ranks, func(rank int) bool { return g.offers[rank] != nil }, "came but made no link")
	if err != nil {
		return rankset.Set{}, err
	}
	both, err := g.connectLinks(ranks, &mine)
	if err != nil {
		return rankset.Set{}, err
	}
	g.notify(ranks, kindLinked, nil)
	if err := g.await(ranks, &g.linked, "came but did not connect its link"); err != nil {
		return rankset.Set{}, err
	}
	g.linked = g.linked.Minus(ranks)
	return g.tryLinks(ranks, both, &mine)
}

// connectLinks connects the links of which both sides have their end, and returns the
// ranks with a link that is connected here.
func (g *remoteRendezvous) connectLinks(ranks rankset.Set, mine *[rankset.MaxRanks]error) (up rankset.Set, err error) {
	for rank := range ranks.All() {
		if mine[rank] == nil && len(g.offers[rank]) > 0 {
			up = up.With(rank)
		}
	}
	err = g.onLinks(up, func(rank int, l *link.Link) error {
		err := l.Connect(g.offers[rank], g.until)
		if err == nil || !g.replaceable(rank, err) {
			return err
		}
		mine[rank] = err
		return nil
	})
	for rank := range ranks.All() {
		g.offers[rank] = nil
		if mine[rank] != nil {
			up = up.Without(rank)
		}
	}
	return up, err
}

// tryLinks finds out on which links bytes arrive, in both directions: the two sides of
// each come to the same result. A link that works may
// break from then on; one that does not is given up.
func (g *remoteRendezvous) tryLinks(ranks, up rankset.Set, mine *[rankset.MaxRanks]error) (missing rankset.Set, err error) {
	err = g.onLinks(up, func(rank int, l *link.Link) error {
		if mine[rank] = l.Try(g.until); mine[rank] == nil {
			g.v.reconnectLink(rank, l)
			mine[rank] = l.Err() // from here on it does not end because it breaks
		}
		return nil
	})
	if err != nil {
		return rankset.Set{}, err
	}
	for rank := range ranks.All() {
		g.notify(rankset.Of(rank), kindTried, why(mine[rank]))
	}
	if err := g.awaitEach(ranks, func(rank int) bool { return g.tried[rank] != nil }, "came but did not try its link"); err != nil {
		return rankset.Set{}, err
	}
	for rank := range ranks.All() {
		theirs := *g.tried[rank]
		if g.tried[rank] = nil; mine[rank] == nil && theirs == "" {
			continue
		}
		missing = missing.With(rank)
		if err := g.giveUp(rank, g.common(rank), mine[rank], theirs); err != nil {
			return rankset.Set{}, err
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

// giveUp remembers a carrier that does not work, and closes its link.
func (g *remoteRendezvous) giveUp(rank int, carrier string, mine error, theirs string) error {
	if mine != nil {
		g.reasons[rank] = append(g.reasons[rank], mine.Error())
	}
	if theirs != "" {
		g.reasons[rank] = append(g.reasons[rank], fmt.Sprintf("rank %d says: %s", rank, theirs))
	}
	g.useless[rank] = append(g.useless[rank], carrier)
	l := g.links[rank]
	if l == nil {
		return nil
	}
	if err := l.Close(g.until); err != nil {
		return err
	}
	g.links[rank] = nil
	g.v.peers[rank].link.Store(nil)
	return nil
}

// makeLink makes this side's end over the pair's next carrier, and offers it. An
// end that cannot be made is an empty offer while there is another carrier.
func (g *remoteRendezvous) makeLink(rank int) (mine, err error) {
	name := g.common(rank)
	switch {
	case name == "" && g.useless[rank] != nil:
		return nil, fmt.Errorf("rank %d cannot be reached: %s", rank, strings.Join(g.reasons[rank], "; "))
	case name == "":
		return nil, fmt.Errorf("rank %d has carriers %v, this rank has %v: %w", rank, g.names[rank], g.own[rank], transport.ErrMismatch)
	}
	poller := g.carriers.poller(name)
	l, err := link.NewLink(poller, rank, rand.Uint32(), g.v.cfg.Link, g.v.cfg.rings(poller.Carrier()), g.standby(rank, name)...)
	switch {
	case err != nil && g.replaceable(rank, err):
		g.notify(rankset.Of(rank), kindOffer, nil)
		return err, nil
	case err != nil:
		return nil, err
	}
	g.links[rank] = l
	g.v.peers[rank].link.Store(l)
	g.notify(rankset.Of(rank), kindOffer, l.Offer())
	return nil, nil
}

// common is the carrier that is next for a pair: the same on both sides. "" if none is
// left.
func (g *remoteRendezvous) common(rank int, besides ...string) string {
	lower, higher := g.own[rank], g.names[rank]
	if rank < g.v.participants.self {
		lower, higher = higher, lower
	}
	return choose(without(lower, append(besides, g.useless[rank]...)), higher)
}

// standby is the carrier to which a link over a carrier may go over in use: the same on
// both sides.
func (g *remoteRendezvous) standby(rank int, carrier string) []*link.Poller {
	if next := g.common(rank, carrier); next != "" {
		return []*link.Poller{g.carriers.poller(next)}
	}
	return nil
}

// replaceable says whether an error speaks against the pair's carrier alone, and
// another is left. Where ranks disagree, and where time is over, none would help.
func (g *remoteRendezvous) replaceable(rank int, err error) bool {
	for _, final := range [...]error{transport.ErrMismatch, domain.ErrMetadata, os.ErrDeadlineExceeded} {
		if errors.Is(err, final) {
			return false
		}
	}
	return g.common(rank, g.common(rank)) != ""
}

func without(names, useless []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(useless, name) })
}

// explain is for Domain.Paths. The link may go over meanwhile: so that wentOver comes
// before all of this or after it, all is under the table's lock.
func (g *remoteRendezvous) explain(rank int, failed string) {
	g.v.paths.change(rank, func(p *Path) {
		p.Carrier, p.Device = g.links[rank].Carrier()
		before, reasons := g.carriers.fallback(rank)
		p.FellBack = before || g.own[rank][0] != p.Carrier || g.names[rank][0] != p.Carrier
		if reasons == "" && failed == "" && g.names[rank][0] != g.common(rank) {
			reasons = "the first carrier that both have"
		}
		for _, text := range []string{reasons, failed, g.links[rank].Remarks()} {
			if text != "" {
				p.Why += "; " + text
			}
		}
	})
}

// onLinks does something with the links of ranks, at once: each waits for its peer. An
// error that ends the rendezvous, or one link, ends the waiting of the others.
func (g *remoteRendezvous) onLinks(ranks rankset.Set, do func(rank int, l *link.Link) error) error {
	results := make(chan error, rankset.MaxRanks)
	num := 0
	for rank := range ranks.All() {
		num++
		l := g.links[rank]
		safego.Go("link connect", func() { results <- do(rank, l) }, func(err error) { results <- err })
	}
	return g.awaitLinks(results, num)
}

// awaitLinks returns when no link uses the remoteRendezvous any more.
func (g *remoteRendezvous) awaitLinks(results <-chan error, num int) (first error) {
	events, cancel := g.v.events, g.cancel
	for num > 0 {
		var err error
		select {
		case err = <-results:
			num--
		case n := <-events:
			err = g.take(n)
		case <-cancel:
			err = errCancelled
		}
		if err != nil && first == nil {
			first, events, cancel = err, nil, nil
			g.breakLinks(err)
		}
	}
	return first
}

func (g *remoteRendezvous) breakLinks(cause error) {
	for _, l := range g.links {
		if l != nil {
			l.Break(cause)
		}
	}
}
