package shm

import (
	"slices"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
)

// maxFormer bounds the replaced processes that a domain goes on watching. The oldest is
// dropped then; it is never known to have ended.
const maxFormer = 64

// install makes the result of a settled rendezvous the domain's. It cannot fail.
func (d *hostDomain) install(peers []*participant, present rankset.Set) {
	d.sweep(peers)
	for r, p := range peers {
		if p != nil {
			d.installPeer(r, p)
		}
	}
	d.present.Store(present)
	for r := range peers {
		if !present.Has(r) {
			d.peers[r].Store(nil)
		}
	}
	d.showOne()
	d.holdWord()
}

// showOne closes the descriptors of ranks that were once behind this one, where another one's has come.
func (d *hostDomain) showOne() {
	var last *member
	for i := range d.known {
		m := d.known[(d.Rank()+1+i)%len(d.known)]
		if m == nil || m.shown == nil {
			continue
		}
		if last == nil {
			last = m
			continue
		}
		sys.CloseAll(m.shown)
		m.shown = nil
	}
}

func (d *hostDomain) installPeer(r int, p *participant) {
	old := d.known[r]
	if p.member == nil {
		old.renew(p.contact, d.Rank())
		d.peers[r].Store(old)
		return
	}
	d.known[r] = p.member
	d.peers[r].Store(p.member)
	if old != nil {
		d.retire(old)
	}
}

// renew replaces the contact of a member that has come again. The new one is
// watched already, so no death is missed; one that is known stays known.
func (m *member) renew(c *contact, self int) {
	old := m.contact.Load()
	old.unwatch()
	if lost := old.lost.Load(); lost != nil {
		c.lost.CompareAndSwap(nil, lost)
	}
	m.contact.Store(c)
	old.end(self)
}

// retire gives up the memory of a member that was replaced, and goes on
// watching its process.
func (d *hostDomain) retire(m *member) {
	m.shut()
	if m.Lost() != nil || !m.contact.Load().isWatched() {
		m.end(d.Rank()) // there is nothing to learn any more
		return
	}
	if d.former = append(d.former, m); len(d.former) > maxFormer {
		d.former[0].end(d.Rank())
		d.former = d.former[1:]
	}
}

// sweep forgets the processes that are known to have ended, except those that still have
// a rank or are about to have one again: a process that was absent may have come to the
// rendezvous and died since.
func (d *hostDomain) sweep(participants []*participant) {
	var former []*member
	for _, m := range d.former {
		if m.Lost() == nil {
			former = append(former, m)
		} else {
			m.end(d.Rank())
		}
	}
	d.former = former
	for r, m := range d.known[:len(participants)] {
		if m != nil && participants[r] == nil && d.peers[r].Load() == nil && m.Lost() != nil {
			m.end(d.Rank())
			d.known[r] = nil
		}
	}
}

// holdWord lets peers in other processes see when this one is dying.
func (d *hostDomain) holdWord() {
	foreign := func(m *member) bool { return m != nil && m.contact.Load().kind != bySameProcess }
	if !d.held && slices.ContainsFunc(d.known[:], foreign) {
		processWatcher.hold(d.own.base.header, holderOffset)
		d.held = true
	}
}
