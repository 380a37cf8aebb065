package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/multihost"
)

// ConnectTimeout is a timeout for callers of Connect that have none of their own.
const ConnectTimeout = 60 * time.Second

// rendezvous is how far a buffer has come towards its first or its next epoch.
type rendezvous struct {
	stage    stage
	listener *multihost.Listener
	change   *multihost.Change // the change of a rank that was connected before
	next     ep.Standing       // the epoch that begins, once the ranks have met
	timeout  time.Duration     // the timeout of its connect
	over     chan struct{}     // ends with its connect
}

type stage int

const (
	stageListening stage = iota // Connect may be called
	stageConnecting
	stageFailed
	stageMet  // Install may be called
	stageOver // calls on the buffer are possible
)

// end releases all that the rendezvous holds.
func (m *rendezvous) end() error {
	var err error
	if m.listener != nil {
		err = m.listener.Close()
	}
	if m.change != nil {
		m.change.Abort()
		m.change = nil
	}
	return err
}

// Metadata returns the bytes that every other rank of the rendezvous must pass to
// Connect: a few hundred, without secrets.
func (b *Buffer) Metadata() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rendezvous.listener.Metadata()
}

// listen begins a rendezvous. The caller holds b.mu, or no other goroutine knows the
// buffer yet.
func (b *Buffer) listen() error {
	l, err := b.newListener()
	if err == nil {
		b.rendezvous = rendezvous{listener: l}
	}
	return err
}

// newListener makes a listener. If the buffer had an epoch, the listener takes over the
// buffer's memory, so that addresses stay. Otherwise it has its own memory.
func (b *Buffer) newListener() (*multihost.Listener, error) {
	if b.dom == nil {
		if err := b.engine.drop(); err != nil { // the core of a join that failed: a buffer has only one core
			return nil, err
		}
		if err := b.engine.freeRings(); err != nil {
			return nil, err
		}
		return multihost.Open(b.open)
	}
	st, err := b.engine.core().Prepare()
	if err != nil {
		return nil, err
	}
	if err := b.engine.freeRings(); err != nil {
		return nil, err
	}
	params, err := b.engine.params(st)
	if err != nil {
		return nil, err
	}
	return multihost.Relist(b.dom, params)
}

// Update leaves the epoch, or gives up a rendezvous, and begins a new rendezvous: a lost
// rank is replaced, or ranks leave or come. Operations in flight end with ep.ErrUpdating,
// handles become stale, and Metadata returns new bytes. Connect comes next, and then,
// once every rank is known to have connected, Install.
func (b *Buffer) Update() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b.closedError()
	}
	if b.rendezvous.stage == stageConnecting {
		return ep.Invalid("%s is being connected in another thread", b.name)
	}
	if err := b.rereadKeys(); err != nil {
		return err // nothing has changed
	}
	_ = b.rendezvous.end() // a failure here has no consequence: the memory belongs to another owner
	joined := b.rendezvous.stage == stageOver
	b.rendezvous.stage = stageFailed // the stage until there is another listener
	if b.joining && !joined {        // the join was not installed
		b.dom, b.joining = nil, false
		if err := b.engine.drop(); err != nil {
			return err
		}
	}
	return b.listen()
}

// rereadKeys reads the key file again for the next rendezvous: keys can be exchanged
// while ranks run.
func (b *Buffer) rereadKeys() error {
	if b.open.Keys == nil {
		return nil
	}
	if err := b.open.Keys.Reload(); err != nil {
		return wrong("key_file", ": %v", err)
	}
	return nil
}

// Connect connects this rank with the others. all[r] is the metadata of rank r, and empty
// for a rank that does not take part. Connect waits until every rank that takes part is
// connected, or for the timeout. If all of them are new, calls are possible from here on;
// otherwise they are after Install.
//
// ep.ErrMismatch and transport.ErrMismatch name the first parameter on which ranks
// disagree; os.ErrDeadlineExceeded and domain.ErrExited name the rank that is missing.
// After an error, call Update for another rendezvous, or Close.
func (b *Buffer) Connect(all [][]byte, timeout time.Duration) error {
	if len(all) != b.NumRanks() {
		return ep.Invalid("num_ranks is %d, the buffer was created for %d", len(all), b.NumRanks())
	}
	l, err := b.startConnect()
	if err != nil {
		return err
	}
	defer close(b.rendezvous.over)
	next, joining, err := b.readMetadata(all)
	if err == nil {
		if b.dom == nil {
			err = b.join(l, all, timeout, joining)
		} else {
			err = b.rejoin(l, all, timeout)
		}
	}
	return b.endConnect(l, next, timeout, err)
}

// startConnect leaves the listener where Close finds it, so that closing ends a Connect
// in another goroutine.
func (b *Buffer) startConnect() (*multihost.Listener, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, b.closedError()
	}
	if b.rendezvous.stage != stageListening {
		return nil, ep.Invalid("%s was connected before: update it first", b.name)
	}
	b.rendezvous.stage, b.rendezvous.over = stageConnecting, make(chan struct{})
	return b.rendezvous.listener, nil
}

func (b *Buffer) endConnect(l *multihost.Listener, next ep.Standing, timeout time.Duration, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errors.Join(b.closedError(), b.rendezvous.end()) // Close goes on
	}
	if err != nil {
		b.rendezvous.stage = stageFailed
		_ = l.Close()
		return err
	}
	b.rendezvous.next, b.rendezvous.stage, b.rendezvous.timeout = next, stageMet, timeout
	if b.rendezvous.change == nil && !b.joining {
		b.rendezvous.stage = stageOver // all ranks are new: the first epoch has begun
	}
	return nil
}

// join connects a new rank, to a new group or to a running one.
func (b *Buffer) join(l *multihost.Listener, all [][]byte, timeout time.Duration, joining bool) error {
	until := time.Now().Add(timeout)
	dom, err := l.Connect(all, timeout)
	if err != nil {
		return err
	}
	if err := b.engine.make(dom, joining); err != nil {
		return errors.Join(err, dom.Close())
	}
	b.mu.Lock()
	b.joining, b.dom = joining, dom
	closed := b.closed
	b.mu.Unlock()
	if closed || joining {
		return nil // the buffer is closed: the goroutine that closes it waits for this one
	}
	if err := b.engine.connect(time.Until(until)); err != nil {
		b.mu.Lock()
		b.dom = nil
		b.mu.Unlock()
		return errors.Join(err, b.engine.drop()) // the next rendezvous, or Close, drops the rest
	}
	return nil
}

// rejoin connects a rank that had an epoch before.
func (b *Buffer) rejoin(l *multihost.Listener, all [][]byte, timeout time.Duration) error {
	change, err := l.Reconnect(all, timeout)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rendezvous.change = change
	return nil
}

// readMetadata compares the parameters on which the engines need ranks to agree. It
// returns the epoch that the ranks make, and whether they join ranks that had one.
func (b *Buffer) readMetadata(all [][]byte) (next ep.Standing, joining bool, err error) {
	rank := b.Rank()
	params, infos := make([][]byte, len(all)), make([]multihost.Info, len(all))
	for r, m := range all {
		if len(m) == 0 {
			continue
		}
		info, err := multihost.ParseMetadata(m)
		if err != nil {
			return next, false, fmt.Errorf("metadata of rank %d: %w", r, err)
		}
		params[r], infos[r] = info.Shm.Params, info
		joining = joining || info.Survivor
	}
	if params[rank] == nil {
		return next, false, ep.Invalid("all has no metadata of this rank, %d", rank)
	}
	next, err = b.engine.check(rank, params, infos)
	return next, joining, err
}

// Install begins the epoch of the ranks that have connected. All of them must call it,
// or none: if one of them failed to connect, all call Update instead. It does nothing if
// Connect has begun the epoch already.
func (b *Buffer) Install() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b.closedError()
	}
	if b.rendezvous.stage == stageOver {
		return nil
	}
	if b.rendezvous.stage != stageMet {
		return ep.Invalid("%s has no rendezvous to install: update and connect it first", b.name)
	}
	if err := b.engine.install(b.rendezvous.next, b.commit, b.rendezvous.timeout); err != nil {
		return err
	}
	b.rendezvous.stage, b.joining = stageOver, false
	return nil
}

// commit replaces the old ranks by the ranks that have met, once.
func (b *Buffer) commit() error {
	if b.rendezvous.change == nil {
		return nil
	}
	if err := b.rendezvous.change.Commit(); err != nil {
		return err // the change stays: a call without it would begin the epoch with the old ranks
	}
	b.rendezvous.change = nil
	return nil
}
