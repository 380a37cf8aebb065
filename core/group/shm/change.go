package shm

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// Change is what a rendezvous of survivors has gathered for a domain. It ends by
// Commit, by Abort or with the domain. Its methods are safe for concurrent
// use.
type Change struct {
	d        *hostDomain
	listener *Listener // of the rendezvous, while that runs

	// Guarded by d.mu.
	peers   []*participant
	present rankset.Set
	page    *memberspage // in exchange for the domain's; nil: that stays
}

var errOver = errors.New("the change is committed or aborted already")

// open reserves the domain for the rendezvous m.
func (c *Change) open(m *rendezvous) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	switch {
	case c.d.closed.Load():
		return transport.ErrClosed
	case c.d.change != nil:
		return errors.New("another change of the domain is open")
	}
	c.d.change = c
	m.known = c.d.known
	return nil
}

// gather takes the result of a rendezvous. The domain may have been closed
// meanwhile.
func (c *Change) gather(m *rendezvous) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.closed.Load() {
		return transport.ErrClosed
	}
	if m.moved {
		page, err := mapMembers(m.membersFD)
		if err != nil {
			return fmt.Errorf("rank %d: members page: %w", m.source(), err)
		}
		c.page = &memberspage{region: page, fd: m.membersFD}
	}
	if err := m.settle(c.d.ring); err != nil {
		c.dropPage()
		return err
	}
	c.peers, c.present, c.listener = m.peers, m.present, nil
	return nil
}

// forget frees the domain for another change.
func (c *Change) forget() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.change == c {
		c.d.change = nil
	}
}

// Present are the ranks that have come.
func (c *Change) Present() rankset.Set {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return c.present
}

// Commit makes the ranks of the rendezvous those of the domain. A peer that was known
// keeps its memory's addresses. One that was replaced is no longer reached by its number:
// its segments must not be used any more (except retained ones), its Process stays
// watched. A rank that did not come is absent, and may come to a later rendezvous with
// the memory that it has. The members word is left as it is.
func (c *Change) Commit() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	switch {
	case c.d.closed.Load():
		return fmt.Errorf("shm: commit: %w", transport.ErrClosed)
	case c.d.change != c:
		return fmt.Errorf("shm: commit: %w", errOver)
	}
	c.d.install(c.peers, c.present)
	if c.page != nil {
		c.d.move(c.page)
	}
	c.peers, c.page, c.d.change = nil, nil, nil
	return nil
}

// Abort drops what was gathered. It does nothing after Commit. Idempotent.
func (c *Change) Abort() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.change == c {
		c.abort()
	}
}

// abort is called with d.mu held, also when the domain closes, perhaps while
// the rendezvous still runs.
func (c *Change) abort() {
	if c.listener != nil {
		c.listener.interrupt()
	}
	for _, p := range c.peers {
		if p != nil {
			p.drop(c.d.Rank())
		}
	}
	c.dropPage()
	c.peers, c.d.change = nil, nil
}

func (c *Change) dropPage() {
	if c.page != nil {
		c.page.Release()
		sys.CloseAll(c.page.fd)
		c.page = nil
	}
}
