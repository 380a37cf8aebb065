package shm

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// Relist makes a listener for another rendezvous of a rank that has a domain: it
// brings the domain's memory and members page, under a fresh name and nonce.
// Any number of them may be made; none disturbs the domain unless its
// Reconnect succeeds and is committed.
func Relist(d domain.Domain, params []byte) (*Listener, error) {
	dom, ok := d.(*hostDomain)
	if !ok {
		return nil, fmt.Errorf("shm: relist: a %T is not a domain of this package", d)
	}
	l := &Listener{info: dom.info, domain: dom}
	l.info.Survivor, l.info.Params = true, bytes.Clone(params)
	if err := l.name(); err != nil {
		return nil, fmt.Errorf("shm: relist: %w", err)
	}
	err := dom.duplicateTo(l)
	if err == nil {
		err = l.listen()
	}
	if err != nil {
		return nil, fmt.Errorf("shm: relist: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

// duplicateTo gives a listener descriptors of its own: the domain may be closed
// while it sends them.
func (d *hostDomain) duplicateTo(l *Listener) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return transport.ErrClosed
	}
	if l.memory, err = sys.Dup(d.own.memory); err == nil {
		l.members, err = sys.Dup(d.members.Load().fd)
	}
	return err
}

// ReconnectWith runs a rendezvous of the ranks that have given their metadata, survivors
// and new ones alike, as Connect does for these. Nothing of the domain changes before
// Change.Commit. It uses the Listener up as Connect does. One Change per domain can be
// open at a time.
//
// A rank that ends at the last moment can leave some ranks with a Change and others with
// an error: a rank that commits must have agreed with the others.
//
// A group that goes on elsewhere may have two members pages here: ranks that came to a
// rendezvous without any earlier rank of this host have made another one. With anyPage a
// survivor takes that of the source in exchange for its own.
func (l *Listener) ReconnectWith(all [][]byte, anyPage bool, deadline time.Duration) (*Change, error) {
	if l.domain == nil {
		return nil, domain.Connecting(errors.New("a rank without a domain connects"))
	}
	m, err := l.plan(all, deadline)
	if err != nil {
		return nil, domain.Connecting(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() || l.memory == nil {
		return nil, domain.Connecting(fmt.Errorf("listener: %w", transport.ErrClosed))
	}
	m.anyPage = anyPage
	c := &Change{d: l.domain, listener: l}
	if err = c.open(m); err == nil {
		err = l.reconnect(m, c)
		l.drop()
	}
	if err != nil {
		return nil, domain.Connecting(err)
	}
	return c, nil
}

func (l *Listener) reconnect(m *rendezvous, c *Change) error {
	m.cancel, m.socket, m.memory = l.cancel, l.socket, l.memory
	m.membersFD, m.survivor = l.members, true
	err := m.hold()
	if err == nil {
		err = c.gather(m)
	}
	if err != nil {
		m.abandon(err)
		c.forget()
	}
	return err
}
