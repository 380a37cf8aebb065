package multihost

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// Change is what a rendezvous of survivors has gathered for a domain. It ends by
// Commit, by Abort or with the domain. Its methods are safe for concurrent
// use.
type Change struct {
	d            *Domain
	local        *shm.Change // nil while the rendezvous runs
	participants *participants
	view         *view
	links        []*link.Link
	cancel       func()        // ends the rendezvous while that runs
	met          chan struct{} // closed when it has ended
}

var errOver = errors.New("the change is committed or aborted already")

// Reconnect runs a rendezvous of the ranks that have given their metadata, survivors and
// new ones alike. Links to remote ranks are made anew. Nothing of the domain changes
// before Change.Commit. What shm.Listener.Reconnect says holds here, too.
func (l *Listener) Reconnect(all [][]byte, deadline time.Duration) (c *Change, err error) {
	if l.domain == nil {
		return nil, domain.Connecting(errors.New("a rank without a domain connects"))
	}
	err = l.rendezvous(all, deadline, func(r *participants, until time.Time) (err error) {
		c, err = l.reconnect(r, until)
		return err
	})
	return c, domain.Connecting(err)
}

func (l *Listener) reconnect(r *participants, until time.Time) (*Change, error) {
	c := &Change{d: l.domain, participants: r, cancel: func() { _ = l.interrupt() }, met: make(chan struct{})}
	defer close(c.met)
	if err := c.open(); err != nil {
		return nil, err
	}
	local, err := l.local.ReconnectWith(r.localOnly(), c.d.hadRemote.Load() || !r.remote().Empty(), time.Until(until))
	if err != nil {
		c.forget()
		return nil, err
	}
	v, links, err := c.d.gather(l, r, until)
	if err == nil {
		if c.gathered(local, v, links) {
			return c, nil
		}
		err = transport.ErrClosed
		if v != nil {
			c.d.keep(v, links)
		}
	}
	local.Abort()
	c.forget()
	return nil, err
}

// open reserves the domain.
func (c *Change) open() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	switch {
	case c.d.closed:
		return transport.ErrClosed
	case c.d.change != nil:
		return errors.New("another change of the domain is open")
	}
	c.d.change = c
	return nil
}

// gathered takes the result of a rendezvous; false: the domain was closed
// meanwhile.
func (c *Change) gathered(local *shm.Change, v *view, links []*link.Link) bool {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.change != c {
		return false
	}
	c.local, c.view, c.links, c.cancel = local, v, links, nil
	return true
}

func (c *Change) forget() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.change == c {
		c.d.change = nil
	}
}

// Present are the ranks that have come.
func (c *Change) Present() rankset.Set { return c.participants.present }

// Commit makes the ranks of the rendezvous those of the domain, as
// shm.Change.Commit does. No call of Remote may run meanwhile. The members word
// is left as it is.
func (c *Change) Commit() error {
	mine, err := c.commit()
	if mine && err != nil {
		c.drop()
		c.d.draining.Done()
	}
	return err
}

// commit keeps Close away until all is in its place: nothing would close what Close does
// not find there. mine: the change was open until now.
func (c *Change) commit() (mine bool, err error) {
	d := c.d
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return false, fmt.Errorf("multihost: commit: %w", transport.ErrClosed)
	case d.change != c:
		return false, fmt.Errorf("multihost: commit: %w", errOver)
	}
	d.change = nil
	if err := c.local.Commit(); err != nil {
		d.draining.Add(1)
		return true, err
	}
	d.install(c.participants, c.view, c.links)
	return true, nil
}

// Abort drops what was gathered. It does nothing after Commit. Idempotent.
func (c *Change) Abort() {
	c.d.mu.Lock()
	mine := c.d.change == c
	if mine {
		c.d.change = nil
		c.d.draining.Add(1) // Close waits for what it does not see any more
	}
	c.d.mu.Unlock()
	if mine {
		defer c.d.draining.Done()
		c.giveUp()
	}
}

// giveUp ends a change that the domain has forgotten.
func (c *Change) giveUp() {
	if c.cancel != nil {
		c.cancel()
		<-c.met // it still uses the domain, and drops what it has
		return
	}
	c.local.Abort()
	c.drop()
}

func (c *Change) drop() {
	if c.view != nil {
		c.d.keep(c.view, c.links)
	}
}
