package verbs

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// What Wait waits for, as bits of what the poller reports.
const (
	tokenChannel = iota
	tokenAsync
	tokenBell
)

// waiter is what Wait blocks in.
type waiter struct {
	mu       sync.Mutex // held by the one goroutine in Wait
	poller   *sys.Readable
	listener *libibverbs.Listener
	closed   atomic.Bool
	// unplugged means that only the bell is waited for: the device is gone.
	unplugged bool

	bellMu sync.RWMutex // held to ring the bell, and to take it away
	bell   *sys.FD
}

func (w *waiter) start(listener *libibverbs.Listener, channel, async int) (err error) {
	w.listener = listener
	if w.poller, err = sys.NewReadable(); err != nil {
		return err
	}
	if w.bell, err = sys.NewEvent(); err != nil {
		return err
	}
	for token, fd := range []int{tokenChannel: channel, tokenAsync: async, tokenBell: w.bell.Raw()} {
		if err = w.poller.Add(fd, uint(token)); err != nil {
			return err
		}
	}
	return nil
}

func (w *waiter) unplug(channel, async int) error {
	return firstError(w.poller.Remove(channel), w.poller.Remove(async))
}

// stop ends a Wait that is under way, and all later ones. It says so before it rings: a
// goroutine that is woken may wait again before this gets the lock.
func (w *waiter) stop() {
	w.closed.Store(true)
	_ = w.ring()
	passed(&w.mu)
}

func (w *waiter) ring() error {
	w.bellMu.RLock()
	defer w.bellMu.RUnlock()
	if w.bell == nil {
		return nil
	}
	return sys.Signal(w.bell)
}

// free closes the descriptors. Later calls of Wake do nothing.
func (w *waiter) free() error {
	w.bellMu.Lock()
	bell := w.bell
	w.bell = nil
	w.bellMu.Unlock()
	return firstError(w.poller.Close(), bell.Close())
}

// Wake ends a Wait.
func (t *Transport) Wake() {
	_ = t.wait.ring() // an eventfd cannot fail to be written
}

// Wait blocks until there may be something.
func (t *Transport) Wait(d time.Duration) error {
	w := &t.wait
	w.mu.Lock()
	defer w.mu.Unlock()
	if ready, err := t.beginWait(); ready || err != nil {
		return err
	}
	ready, err := w.poller.Wait(d)
	if err != nil {
		return err
	}
	return t.woken(ready)
}

// beginWait reports whether there is something already; else the descriptors
// will say.
func (t *Transport) beginWait() (ready bool, err error) {
	if err := t.unplugged(); err != nil {
		return false, err
	}
	return t.prepareSleep()
}

// unplugged leaves descriptors alone that are always readable: those of a
// device that is gone.
func (t *Transport) unplugged() error {
	w := &t.wait
	switch {
	case w.closed.Load():
		return transport.ErrClosed
	case t.fatal.Load() && !w.unplugged:
		w.unplugged = true
		return w.unplug(t.channel.FD(), t.ctx.AsyncFD())
	}
	return nil
}

// lookAround takes back what the descriptors say, without waiting.
func (t *Transport) lookAround() error {
	seen, err := t.wait.poller.Wait(0)
	if err != nil {
		return err
	}
	return t.woken(seen)
}

// woken takes back what ended the sleep.
func (t *Transport) woken(ready uint32) error {
	if ready&(1<<tokenChannel) != 0 {
		t.takeCompletionEvents()
	}
	if ready&(1<<tokenAsync) != 0 {
		t.takeEvents()
	}
	if ready&(1<<tokenBell) != 0 {
		return sys.Unsignal(t.wait.bell)
	}
	return nil
}

// prepareSleep makes the next completion raise an event, and reports whether
// there is something already. What came before the queue was armed raises
// none, so it looks once more afterwards.
func (t *Transport) prepareSleep() (ready bool, err error) {
	if t.events.waiting() {
		return true, nil
	}
	p := &t.poll
	p.mu.Lock()
	defer t.unlockPoll()
	if ready, err = t.find(); ready || err != nil || p.armed || t.fatal.Load() {
		return ready, err
	}
	if err = p.queue.Arm(); err != nil {
		return false, err
	}
	p.armed = true
	return t.find()
}

// takeCompletionEvents empties the channel.
func (t *Transport) takeCompletionEvents() {
	for t.wait.listener.Take() {
		t.poll.mu.Lock()
		t.poll.armed = false
		t.poll.mu.Unlock()
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
