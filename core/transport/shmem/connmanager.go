package shmem

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
)

// connManager is the goroutine of a transport that looks after connections: it lets
// peers in, hands out memory, takes in what comes, and notices the end of
// processes. No request needs it but the first that touches a memory.
type connManager struct {
	t        *Transport
	epoll    *sys.Epoll
	stop     *sys.FD
	listener *sys.FD
	started  chan struct{} // closed once the thread holds the table's word
	done     chan struct{}

	mu      sync.Mutex
	conns   map[int32]*conn
	last    int32
	pending accept.Pending[*conn] // without an endpoint; of the goroutine only
	rests   time.Time             // until then the listener is left alone; zero: it is not; of the goroutine only

	refused accept.Refusal
}

// listenerRests is how long the listener is left alone after a connection could
// not be taken, for want of descriptors for instance: it stays readable meanwhile.
const listenerRests = 10 * time.Millisecond

// conn is a connection to one endpoint of a peer. Only its endpoint closes it and reads
// from it, under the endpoint's lock; without one, the connection manager does.
type conn struct {
	fd     *sys.FD
	pidfd  *sys.FD // of the process at the other end; nil where there are none
	token  int32
	pid    int32 // token of pidfd
	owner  *Endpoint
	deaf   bool // nothing is read any more, but its end still counts
	closed bool
}

// Tokens that are no connection's.
const (
	tokenStop = iota
	tokenListener
	firstToken
)

func newConnManager(t *Transport) (*connManager, error) {
	k := &connManager{t: t, started: make(chan struct{}), done: make(chan struct{}), conns: map[int32]*conn{}, last: firstToken}
	k.pending = accept.NewPending(maxPending, 0, k.drop)
	var err error
	if k.epoll, err = sys.NewEpoll(); err != nil {
		return nil, err
	}
	if k.stop, err = sys.NewEvent(); err == nil {
		err = k.epoll.Add(k.stop, tokenStop)
	}
	if err == nil {
		k.listener, err = sys.ListenAbstract(socketName(t.name), maxPending)
	}
	if err == nil {
		err = k.epoll.Add(k.listener, tokenListener)
	}
	if err != nil {
		k.closeAll()
		return nil, err
	}
	safego.Go("shmem connection manager", k.live, k.broken)
	<-k.started
	return k, nil
}

// live keeps a thread, which holds a word of the table: however this process
// ends, the kernel marks it before anything else.
func (k *connManager) live() {
	defer close(k.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	robust, err := sys.NewRobustList()
	if err == nil {
		defer robust.Close()
		// An old kernel: peers learn of the end by the connection, later.
		_ = robust.Hold(k.t.table.shared.Bytes(), tableHolderOff)
	}
	close(k.started)
	k.loop()
}

// broken ends all endpoints when the goroutine has panicked: nothing would notice the end
// of a process any more.
func (k *connManager) broken(error) {
	k.t.all(func(e *Endpoint) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.fail("the connection manager failed")
	})
}

// close ends the goroutine. Idempotent; nil is closed.
func (k *connManager) close() {
	if k == nil {
		return
	}
	_ = sys.Signal(k.stop) // cannot fail on an open eventfd
	<-k.done
	k.closeAll()
}

func (k *connManager) closeAll() {
	k.pending.Close()
	sys.CloseAll(k.listener, k.stop)
	_ = k.epoll.Close()
}

func (k *connManager) loop() {
	var tokens []int32
	for {
		var err error
		if tokens, err = k.epoll.WaitFor(tokens[:0], k.pollTimeout()); err != nil {
			panic(err)
		}
		if !k.rests.IsZero() && k.pollTimeout() == 0 { // however much there is to do
			k.rests = time.Time{}
			_ = k.epoll.Rearm(k.listener, tokenListener)
		}
		for _, token := range tokens {
			switch token {
			case tokenStop:
				return
			case tokenListener:
				k.admit()
			default:
				k.serve(token)
			}
		}
	}
}

// pollTimeout is how long there may be nothing to do.
func (k *connManager) pollTimeout() time.Duration {
	if k.rests.IsZero() {
		return -1
	}
	return max(0, time.Until(k.rests))
}

// watch begins to look after a connection.
func (k *connManager) watch(c *conn) error {
	k.mu.Lock()
	c.token = k.newToken(c)
	if c.pidfd != nil {
		c.pid = k.newToken(c)
	}
	k.mu.Unlock()
	err := k.epoll.Add(c.fd, c.token)
	if err == nil && c.pidfd != nil {
		err = k.epoll.Add(c.pidfd, c.pid)
	}
	return err
}

// newToken finds a number that is free. Under the lock.
func (k *connManager) newToken(c *conn) int32 {
	for {
		if k.last++; k.last < firstToken {
			k.last = firstToken
		}
		if _, used := k.conns[k.last]; !used {
			k.conns[k.last] = c
			return k.last
		}
	}
}

// drop closes a connection. Idempotent; nil is closed. Under the lock of its
// endpoint.
func (k *connManager) drop(c *conn) {
	if c == nil || c.closed {
		return
	}
	c.closed = true
	k.mu.Lock()
	delete(k.conns, c.token)
	delete(k.conns, c.pid)
	k.mu.Unlock()
	_ = k.epoll.Remove(c.fd) // not there if watch has failed
	if c.pidfd != nil {
		_ = k.epoll.Remove(c.pidfd)
	}
	sys.CloseAll(c.fd, c.pidfd)
}

// admit takes new connections.
func (k *connManager) admit() {
	if err := accept.Take(k.listener, k.welcome); err != nil {
		k.refused.Note(err)
		k.rests = time.Now().Add(listenerRests) // the others stay in the queue
		return
	}
	_ = k.epoll.Rearm(k.listener, tokenListener)
}

// welcome makes a pending connection of a socket.
func (k *connManager) welcome(fd *sys.FD) {
	c, err := newConn(fd)
	switch {
	case err != nil:
		k.refused.Note(err)
	case k.watch(c) != nil:
		k.drop(c)
	default:
		k.pending.Add(c)
	}
}

// newConn checks which user connects: other users, which could learn the name of the
// listener, are not let in.
func newConn(fd *sys.FD) (*conn, error) {
	who, err := sys.PeerCredentials(fd)
	if err == nil {
		err = sys.CheckUser(fmt.Sprintf("process %d", who.PID), who.UID)
	}
	if err != nil {
		_ = fd.Close()
		return nil, err
	}
	c := &conn{fd: fd}
	if c.pidfd, err = sys.PeerPidfd(fd); err != nil && !sys.IsShortage(err) && who.PID != 0 {
		// Before Linux 6.5. The end of the connection tells, too.
		c.pidfd, err = sys.OpenPidfd(who.PID)
	}
	if sys.IsShortage(err) { // that says nothing of the kernel
		_ = fd.Close()
		return nil, err
	}
	return c, nil
}

// serve looks what there is of a connection.
func (k *connManager) serve(token int32) {
	k.mu.Lock()
	c := k.conns[token]
	k.mu.Unlock()
	switch {
	case c == nil:
	case c.owner != nil:
		c.owner.handleEvent(c, token)
	default:
		k.greet(c, token)
	}
}

// greet reads what a pending connection says first: which endpoint it wants.
func (k *connManager) greet(c *conn, token int32) {
	m, fds, err := receive(c.fd)
	if errors.Is(err, sys.ErrAgain) && token == c.token {
		_ = k.epoll.Rearm(c.fd, token)
		return
	}
	defer sys.CloseAll(fds...)
	k.pending.Remove(c)
	if err == nil && m.kind == kindHello && token == c.token {
		if e := k.t.named(m.to); e != nil {
			e.offered(c, m, fds)
			return
		}
	}
	k.drop(c)
}

// named finds an endpoint.
func (t *Transport) named(name nonce) *Endpoint {
	for slot := range t.slots {
		if e := t.slots[slot].Load(); e != nil && e.name == name {
			return e
		}
	}
	return nil
}
