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
	handle gpu.Handle // of a dispatch; 0: it is that of a combine
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

// later has a second phase launched once. One that was closed serves again, in
// the same buffer, so that calls allocate nothing. Who found it by an id may come
// to it after that, when it is another operation's: so whoever comes says by which
// id, and an old one is refused.
type later struct {
	mu    sync.Mutex
	id    uint64 // of the operation that it serves; 0: none
	what  second
	ended bool
	err   error
}

// promise makes an operation of a second phase, and gives its id.
func (b *buffer) promise(what second) uint64 {
	o, _ := b.onGPU.laters.Get().(*operation)
	if o == nil {
		o = &operation{b: b, later: new(later)}
	}
	l := o.later
	l.mu.Lock() // whoever has an old id waits, and is refused
	defer l.mu.Unlock()
	l.what, l.ended, l.err = what, false, nil
	l.id = ops.add(o)
	return l.id
}

// launch launches it. The same answer at every later call, but where it was refused:
// then nothing has happened.
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

// cancel keeps it from being launched. What another call has launched has ended,
// and stays as it is.
func (l *later) cancel(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(id)
}

func (l *later) drop(id uint64) {
	if l.id != id || l.ended {
		return
	}
	if cancelled, err := l.what.drop(); cancelled || err != nil { // an error: it was released before
		l.ended, l.err = true, op.ErrCancelled
	}
}

// close cancels it, and lets its operation, which is in no table any more, serve
// again.
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
