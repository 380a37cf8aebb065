package node

import (
	"errors"
	"sync"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/op"
)

// second is the second phase of a call on CUDA.
type second struct {
	core   *cuda.Buffer
	handle cuda.Handle // the handle of a dispatch; 0: the phase is that of a combine
	ticket cuda.ReduceTicket
	stream uint64
}

// launch launches it.
func (s *second) launch() error {
	if s.handle != 0 {
		return s.core.Receive(s.handle)
	}
	return s.core.Reduce(s.ticket)
}

// drop releases the handle, unless another call has launched it.
func (s *second) drop() (cancelled bool, err error) {
	if s.handle != 0 {
		return s.core.CancelReceive(s.handle, s.stream)
	}
	return s.core.CancelReduce(s.ticket, s.stream)
}

// later is an operation on CUDA: it makes sure that a second phase is launched once. A
// closed later serves again, in the same buffer, so that calls allocate nothing. A caller
// may still hold an Operation of an earlier time: its serial is refused.
type later struct {
	laters *sync.Pool // where it goes when it is closed

	mu     sync.Mutex
	serial uint64 // of the operation that it serves, or served last
	closed bool
	what   second
	ended  bool
	err    error
}

// promise makes an operation of a second phase.
func (g *onCUDA) promise(what second) Operation {
	l, _ := g.laters.Get().(*later)
	if l == nil {
		l = &later{laters: &g.laters}
	}
	l.mu.Lock() // a caller with an old serial waits here, and is refused then
	defer l.mu.Unlock()
	l.serial++
	l.what, l.closed, l.ended, l.err = what, false, false, nil
	return Operation{of: l, serial: l.serial}
}

// wait launches the second phase. Every later call returns the same answer, unless the
// launch was refused: then nothing has happened.
func (l *later) wait(serial uint64, until ep.Phase, _ time.Duration) error {
	if until == ep.PhaseSent {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.serves() != serial {
		return ErrOperationClosed
	}
	if !l.ended {
		l.err = l.what.launch()
		l.ended = !errors.Is(l.err, ep.ErrInvalid)
	}
	return l.err
}

// serves returns the serial of the operation that it serves; 0: none. The caller holds
// l.mu.
func (l *later) serves() uint64 {
	if l.closed {
		return 0
	}
	return l.serial
}

func (l *later) result(*Result) error { return nil }

func (l *later) state(serial uint64) op.State {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.serves() == serial && !l.ended:
		return op.Pending
	case l.serves() == serial && l.err == nil:
		return op.Done
	case l.serves() == serial && !errors.Is(l.err, op.ErrCancelled):
		return op.Failed
	}
	return op.Cancelled
}

// cancel keeps the phase from being launched. If another call has launched it, the
// operation has ended and stays as it is.
func (l *later) cancel(serial uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(serial)
}

func (l *later) drop(serial uint64) {
	if l.serves() != serial || l.ended {
		return
	}
	if cancelled, err := l.what.drop(); cancelled || err != nil { // an error means that it was released before
		l.ended, l.err = true, op.ErrCancelled
	}
}

// close cancels the phase, and lets the later serve again.
func (l *later) close(serial uint64) {
	if l.end(serial) {
		l.laters.Put(l)
	}
}

func (l *later) end(serial uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.serves() != serial {
		return false
	}
	l.drop(serial)
	l.closed, l.what, l.err = true, second{}, nil
	return true
}
