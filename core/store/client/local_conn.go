package client

import (
	"context"
	"net"
	"time"
)

// nearer is a link over the socket that has come with the arena, in place of this one: it answers sooner than TCP.
// Where no session comes about there in half of the time that is left, this link stays.
func (l *link) nearer(deadline time.Time) *link {
	if l.view == nil {
		return l
	}
	m := l.peer.linkOver(l.localConn, halfOf(deadline))
	if m == nil {
		closeBounce(l.bounce)
		l.bounce = nil
		return l
	}
	m.view, m.arenaBytes, m.hold, m.bounce = l.view, l.arenaBytes, l.hold, l.bounce
	_ = l.nc.Close()
	return m
}

// linkOver is a link over a socket that has come with an arena, which it takes over; nil: no session comes about there.
func (p *peer) linkOver(localConn net.Conn, deadline time.Time) *link {
	stop := context.AfterFunc(p.client.ctx, func() { _ = localConn.Close() })
	defer stop()
	m, err := p.session(localConn, deadline)
	if err == nil {
		err = localConn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = localConn.Close()
		return nil
	}
	return m
}

// hasView reports whether blocks are read where they lie.
func (l *link) hasView() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.view != nil
}

// closeView ends what the link has of shared memory.
func (l *link) closeView() {
	if l.view != nil {
		_ = l.view.Close()
	}
	closeBounce(l.bounce)
}
