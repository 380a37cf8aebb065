package node

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/wire"
)

// Buffer is one rank's end of a group, on its way to the first epoch or in one. All
// methods are safe for concurrent use.
type Buffer struct {
	name    string
	engine  engine
	open    multihost.Config // the configuration of the buffer's own listener
	refused refusals

	mu         sync.Mutex // guards the fields below
	rendezvous rendezvous
	dom        *multihost.Domain // nil until connected
	joining    bool              // the group of dom was running before, and its epoch is not installed
	closed     bool
}

// New makes this rank's part of a buffer: its memory, its listeners and, on CUDA, its
// device. It needs no other rank.
func New(cfg Config) (*Buffer, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	b := &Buffer{name: cfg.Name, engine: newEngine(&cfg)}
	if b.name == "" {
		b.name = "buffer"
	}
	params, err := b.engine.params(ep.Standing{})
	if err != nil {
		return nil, err
	}
	if b.open, err = cfg.Hosts.config(); err != nil {
		return nil, err
	}
	b.open.Shm = shm.Config{
		Rank: cfg.Rank, NumRanks: cfg.NumRanks, ControlBytes: layout.ControlBytes, ABIVersion: ABIVersion,
		Params: params, Pages: cfg.Pages,
	}
	if err := b.start(); err != nil {
		wipe(b.open.Keys)
		return nil, err
	}
	return b, nil
}

func newEngine(cfg *Config) engine {
	if cfg.CUDA != nil {
		return newCUDA(cfg)
	}
	return newCPU(cfg)
}

// start opens the device and begins the first rendezvous.
func (b *Buffer) start() error {
	if err := b.engine.open(&b.open); err != nil {
		return err
	}
	b.watch()
	if err := b.listen(); err != nil {
		return errors.Join(err, b.engine.close())
	}
	return nil
}

// Rank returns this rank's number.
func (b *Buffer) Rank() int { return b.open.Shm.Rank }

// NumRanks returns the size of the group.
func (b *Buffer) NumRanks() int { return b.open.Shm.NumRanks }

// Abandon is for a caller that has found a defect in the middle of a call: it ends this
// rank's part in the group as a lost rank's would end.
func (b *Buffer) Abandon(cause error) {
	if c := b.engine.core(); c != nil {
		c.Abandon(cause)
	}
}

// Membership returns the ranks that are in the group now, the group's epoch, and how many ranks this rank has taken out.
func (b *Buffer) Membership() (ranks rankset.Set, epoch membership.Epoch, lost uint64, err error) {
	c, err := b.connected()
	if err != nil {
		return ranks, 0, 0, err
	}
	ranks, epoch, lost = c.Membership()
	return ranks, epoch, lost, nil
}

// Close leaves the group and frees the buffer. It ends a Connect or Install in another
// goroutine, and waits of calls, with ep.ErrClosed. Memory that is retained stays mapped.
//
// It may fail, on CUDA because the device is not done or another process has the memory
// open. The rank is out of the group then. Call Close again until it returns nil.
func (b *Buffer) Close() error {
	defer wipe(b.open.Keys)
	b.engine.stop() // this reaches an Install that holds b.mu
	b.mu.Lock()
	b.closed = true
	err := b.rendezvous.end()
	over := b.rendezvous.over
	b.mu.Unlock()
	if over != nil {
		b.waitFor(over)
	}
	return errors.Join(err, b.engine.close())
}

// waitFor waits for a Connect that was told to end. It may still be making the core that
// Close is about to free.
func (b *Buffer) waitFor(over <-chan struct{}) {
	for {
		b.engine.stop()
		select {
		case <-over:
			return
		case <-time.After(time.Millisecond): // the core may have been made since
		}
	}
}

// connected returns the buffer's core, once there is one. The caller does not hold b.mu.
func (b *Buffer) connected() (core, error) {
	if c := b.engine.core(); c != nil {
		return c, nil
	}
	return nil, b.noCore()
}

// noCore says why a buffer has no core.
func (b *Buffer) noCore() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b.closedError()
	}
	return b.unconnected()
}

func (b *Buffer) unconnected() error {
	return ep.Invalid("%s is not connected yet: connect it first", b.name)
}

func (b *Buffer) closedError() error { return fmt.Errorf("%w: %s was closed", ep.ErrClosed, b.name) }

// domain is nil until the buffer is connected, and after a join is given up or the buffer
// is closed.
func (b *Buffer) domain() (*multihost.Domain, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, b.closedError()
	case b.dom == nil:
		return nil, b.unconnected()
	}
	return b.dom, nil
}

// wipe wipes the keys of a buffer that makes no further connections.
func wipe(keys *wire.Keyring) {
	if keys != nil {
		keys.Close()
	}
}
