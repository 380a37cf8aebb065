package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// Entrance is where the control connections of one meeting arrive.
type Entrance struct {
	fd   *sys.FD
	addr netip.AddrPort
}

// backlog of an entrance: everybody may come at once, and strangers, too.
const backlog = 4 * transport.MaxRanks

// Listen opens an entrance at an address of this host; port 0 lets the system
// choose. Close it, or give it to StartControls.
func Listen(addr netip.AddrPort) (*Entrance, error) {
	fd, bound, err := sys.ListenTCP(addr, backlog)
	if err != nil {
		return nil, fmt.Errorf("link: listening at %v: %w", addr, err)
	}
	return &Entrance{fd: fd, addr: bound}, nil
}

// Addr is the address with its port.
func (e *Entrance) Addr() netip.AddrPort { return e.addr }

// Close is idempotent.
func (e *Entrance) Close() error { return e.fd.Close() }

// Attendee is a rank to have a control connection with.
type Attendee struct {
	ID   wire.PeerID // random, of this meeting
	Addr netip.AddrPort
}

// ControlConfig says how control connections are made.
type ControlConfig struct {
	Rank int
	// ID is this rank's own, known to the others.
	ID   wire.PeerID
	Keys *wire.Keyring
	// Counters count refusals by reason, if not nil.
	Counters *wire.Counters
	// Tick is how often Handler.Tick is called.
	Tick time.Duration
	// HandshakeTimeout bounds connections that have not shown yet that they
	// know a key. Default 5 s.
	HandshakeTimeout time.Duration
}

// Handler is told what happens, on one goroutine. Its methods do not block.
type Handler interface {
	// Up: the rank is connected, and proved to be the one that was meant.
	Up(rank int)
	// Heard: a message has come. It is the callee's only until it returns.
	Heard(rank int, message []byte)
	// Ended: nothing more will come.
	Ended(rank int, how Ending, err error)
	// Tick comes about every ControlConfig.Tick.
	Tick()
}

// Ending says how a control connection ended.
type Ending uint8

// The ends. Only EndDead says that the process has ended: the system of its
// host closed the connection, and it had not said good-bye.
const (
	EndBye    Ending = iota + 1 // the rank closed it, or is about to
	EndDead                     // end of the stream, or a reset
	EndBroken                   // anything else: the network, or bytes that are not genuine
)

// Controls are the control connections of one rank to the others of a meeting.
// One goroutine serves them all. All methods are safe for concurrent use,
// also from the handler's.
type Controls struct {
	cfg     ControlConfig
	handler Handler
	guard   *wire.Guard
	poller  *sys.Poller
	bellMu  sync.Mutex // guards closing and signalling bell
	bell    *sys.FD
	door    *sys.FD // nil once everybody has come
	peers   [transport.MaxRanks]*conn
	who     map[wire.PeerID]int

	// The goroutine's own.
	strangers []*conn
	tokens    map[uint64]*conn
	last      uint64
	buf       []byte

	stop   atomic.Bool
	done   chan struct{}
	end    sync.Once
	closed error
}

// MaxControlBytes is the longest control message.
const MaxControlBytes = 4096

// maxQueuedBytes bounds what waits for one peer to take it.
const maxQueuedBytes = 64 << 10

// maxStrangers bounds connections that have not shown who they are.
const maxStrangers = 2 * transport.MaxRanks

// Message codes of the session.
const (
	codeMessage = 1
	codeBye     = 2
)

// StartControls connects to all ranks in others: this rank dials the lower
// ones, the higher ones come to the entrance, which belongs to Controls from
// then on, also on an error. Handler.Up tells who is there.
func StartControls(cfg ControlConfig, entrance *Entrance, others map[int]Attendee, handler Handler) (*Controls, error) {
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = 5 * time.Second
	}
	c := &Controls{
		cfg: cfg, handler: handler, door: entrance.fd, who: map[wire.PeerID]int{},
		tokens: map[uint64]*conn{}, buf: make([]byte, 64<<10), done: make(chan struct{}),
	}
	err := c.open(others)
	if err == nil {
		c.lock()
		safego.Go("link controls", func() { c.run(); close(c.done) }, c.crashed)
		return c, nil
	}
	c.shut()
	c.dropBell()
	if c.poller != nil {
		_ = c.poller.Close()
	}
	return nil, fmt.Errorf("link: control: %w", err)
}

func (c *Controls) open(others map[int]Attendee) (err error) {
	if c.guard, err = wire.NewGuard(0); err != nil {
		return err
	}
	if c.poller, err = sys.NewPoller(); err != nil {
		return err
	}
	if c.bell, err = sys.NewEvent(); err != nil {
		return err
	}
	if err = c.poller.AddLevel(c.door, doorToken); err != nil {
		return err
	}
	for r, a := range others {
		c.peers[r] = &conn{rank: r, addr: a.Addr, id: a.ID}
		c.who[a.ID] = r
	}
	for r, p := range c.peers {
		if p == nil || r > c.cfg.Rank {
			continue
		}
		if err = c.dial(p); err != nil {
			return fmt.Errorf("rank %d at %v: %w", r, p.addr, err)
		}
	}
	return nil
}

// Send queues a message for a rank and reports whether it did: not before it
// is up, after it has ended, or while too much waits already.
func (c *Controls) Send(rank int, message []byte) bool {
	p := c.peers[rank]
	if p == nil || len(message) > MaxControlBytes || !p.push(codeMessage, message) {
		return false
	}
	c.wake()
	return true
}

// wake makes the goroutine look around.
func (c *Controls) wake() {
	c.bellMu.Lock()
	defer c.bellMu.Unlock()
	if c.bell.Raw() >= 0 {
		_ = sys.Signal(c.bell) // cannot fail on an open eventfd
	}
}

// dropBell closes it; whoever wakes later does nothing.
func (c *Controls) dropBell() {
	c.bellMu.Lock()
	defer c.bellMu.Unlock()
	_ = c.bell.Close()
}

// Ranks has one bit per rank that is connected.
func (c *Controls) Ranks() (ranks uint64) {
	for r, p := range c.peers {
		if p != nil && p.isUp() {
			ranks |= 1 << r
		}
	}
	return ranks
}

// Close says good-bye to everybody and ends the goroutine. Idempotent; not
// from the handler.
func (c *Controls) Close() error {
	c.end.Do(func() {
		c.stop.Store(true)
		c.wake()
		<-c.done
		c.dropBell()
		c.closed = c.poller.Close()
	})
	return c.closed
}

// crashed runs when the goroutine has panicked: the others must not take this
// rank for alive. The handler is in use until it has heard of all ends.
func (c *Controls) crashed(err error) {
	defer close(c.done)
	c.shut()
	for r, p := range c.peers {
		if p != nil {
			c.handler.Ended(r, EndBroken, err)
		}
	}
}

func (c *Controls) run() {
	var events sys.PollEvents
	next := time.Now().Add(c.cfg.Tick)
	for !c.stop.Load() {
		ready, err := c.poller.Poll(&events)
		if err == nil && len(ready) == 0 {
			err = c.poller.Sleep(c.bell, max(0, time.Until(next)))
		}
		if err != nil {
			panic(err)
		}
		for _, e := range ready {
			c.serve(e)
		}
		if now := time.Now(); !now.Before(next) {
			next = now.Add(c.cfg.Tick)
			c.dismiss(now)
			c.handler.Tick()
		}
		c.flush()
	}
	c.farewell()
	c.shut()
}

// doorToken is the entrance's; connections have others.
const doorToken = 0

func (c *Controls) serve(e sys.Ready) {
	if e.Token == doorToken {
		c.accept()
		return
	}
	p := c.tokens[e.Token]
	if p == nil {
		return
	}
	if p.dialling && e.Writable {
		c.finishDial(p)
	}
	if e.Readable && p.fd != nil && !p.dialling {
		c.read(p)
	}
}

// flush writes what has been queued.
func (c *Controls) flush() {
	for _, p := range c.peers {
		if p != nil && p.isUp() {
			c.write(p)
		}
	}
}

// farewell is the good-bye, as far as it can be written at once.
func (c *Controls) farewell() {
	for _, p := range c.peers {
		if p != nil && p.isUp() {
			p.push(codeBye, nil)
			c.write(p)
		}
	}
}

// shut closes all sockets.
func (c *Controls) shut() {
	sys.CloseAll(c.door)
	for _, p := range c.strangers {
		sys.CloseAll(p.fd)
	}
	for _, p := range c.peers {
		if p != nil {
			p.down()
			sys.CloseAll(p.fd)
		}
	}
}

// register gives a socket a token of its own.
func (c *Controls) register(p *conn) error {
	c.last++
	p.token = c.last
	c.tokens[p.token] = p
	return c.poller.Add(p.fd, p.token)
}

// dismiss turns away who has been a stranger for too long.
func (c *Controls) dismiss(now time.Time) {
	for i := len(c.strangers) - 1; i >= 0; i-- {
		if p := c.strangers[i]; now.After(p.until) {
			c.drop(p)
		}
	}
}

// drop closes a stranger's connection.
func (c *Controls) drop(p *conn) {
	delete(c.tokens, p.token)
	sys.CloseAll(p.fd)
	c.forget(p)
}

// forget takes a connection off the list of strangers.
func (c *Controls) forget(p *conn) {
	c.strangers = slices.DeleteFunc(c.strangers, func(q *conn) bool { return q == p })
}

// ended notes the end of a rank's connection.
func (c *Controls) ended(p *conn, err error) {
	if p.over {
		return
	}
	p.over = true
	how := EndBroken
	switch {
	case p.bye:
		how = EndBye
	case errors.Is(err, errEOF), errors.Is(err, sys.ErrReset):
		how = EndDead
	}
	p.down()
	delete(c.tokens, p.token)
	// A socket that is only broken stays open: to close it would tell the
	// peer, should it hear of it, that this process has ended.
	if how != EndBroken {
		sys.CloseAll(p.fd)
	}
	c.handler.Ended(p.rank, how, fmt.Errorf("link: control connection to rank %d: %w", p.rank, err))
}

// lock closes the entrance once nobody is awaited any more.
func (c *Controls) lock() {
	if c.everybody() && c.door.Raw() >= 0 {
		_ = c.poller.Remove(c.door)
		sys.CloseAll(c.door)
	}
}

// everybody reports that nobody is awaited any more.
func (c *Controls) everybody() bool {
	for rank, p := range c.peers {
		if p != nil && rank > c.cfg.Rank && p.fd == nil {
			return false
		}
	}
	return true
}
