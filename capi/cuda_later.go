package main

import (
	"errors"
	"sync"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/op"
)

// second is the second phase of a call on CUDA.
type second struct {
	core   *gpu.Buffer
	handle gpu.Handle // the handle of a dispatch; 0: the phase is that of a combine
	ticket gpu.ReduceTicket
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

// later makes sure that a second phase is launched once. A closed later serves again, in
// the same buffer, so that calls allocate nothing. A thread that found it by an id may
// arrive after that, when it belongs to another operation. So each caller passes its id,
// and an old id is refused.
type later struct {
	mu    sync.Mutex
	id    uint64 // the id of the operation that it serves; 0: none
	what  second
	ended bool
	err   error
}

// promise makes an operation of a second phase, and returns its id.
func (b *buffer) promise(what second) uint64 {
	o, _ := b.onGPU.laters.Get().(*operation)
	if o == nil {
		o = &operation{b: b, later: new(later)}
	}
	l := o.later
	l.mu.Lock() // a caller with an old id waits here, and is refused then
	defer l.mu.Unlock()
	l.what, l.ended, l.err = what, false, nil
	l.id = ops.add(o)
	return l.id
}

// launch launches the second phase. Every later call returns the same answer, unless the
// launch was refused: then nothing has happened.
func (l *later) launch(id uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id != id {
		return ops.missing(id)
	}
	if !l.ended {
		l.err = l.what.launch()
		l.ended = !errors.Is(l.err, ep.ErrInvalid)
	}
	return l.err
}

// cancel keeps the phase from being launched. If another call has launched it, the
// operation has ended and stays as it is.
func (l *later) cancel(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(id)
}

func (l *later) drop(id uint64) {
	if l.id != id || l.ended {
		return
	}
	if cancelled, err := l.what.drop(); cancelled || err != nil { // an error means that it was released before
		l.ended, l.err = true, op.ErrCancelled
	}
}

// close cancels the phase, and lets its operation serve again. That operation is in no
// table any more.
func (l *later) close(id uint64, o *operation) {
	l.end(id)
	o.b.onGPU.laters.Put(o)
}

func (l *later) end(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(id)
	l.id, l.what, l.err = 0, second{}, nil
}
