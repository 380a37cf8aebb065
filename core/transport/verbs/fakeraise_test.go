package verbs

import (
	"syscall"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
)

// raise raises an asynchronous event.
func (f *fakeLib) raise(event libibverbs.AsyncEvent) { f.raiseOn(0, event) }

func (f *fakeLib) raiseOn(device int, event libibverbs.AsyncEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[device]
	d.events = append(d.events, event)
	require.NoError(f.t, sys.Signal(d.async))
}

func (f *fakeLib) nextEvent(ctx, into uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.of(ctx)
	if len(d.events) == 0 {
		if then := d.emptied; then != nil {
			f.mu.Unlock()
			then()
			f.mu.Lock()
		}
		errno := syscall.EAGAIN
		if d.removed {
			errno = syscall.EIO
		}
		dl.SetErrno(errno)
		return ^uintptr(0)
	}
	*dl.At[libibverbs.AsyncEvent](into) = d.events[0]
	d.events = d.events[1:]
	d.unacked++
	if len(d.events) == 0 && !d.removed {
		require.NoError(f.t, sys.Unsignal(d.async))
	}
	f.acks = append(f.acks, d)
	return 0
}

// ack acknowledges the event that was taken last: one at a time takes them.
func (f *fakeLib) ack() uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := len(f.acks) - 1
	f.acks[last].unacked--
	f.acks = f.acks[:last]
	f.calls = append(f.calls, "ack")
	return 0
}

func (f *fakeLib) nextCompletionEvent(channel, cq uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.of(channel)
	ready, err := sys.WaitReadable([]*sys.FD{d.notify}, timeZero)
	if err != nil || len(ready) == 0 {
		dl.SetErrno(syscall.EAGAIN)
		return ^uintptr(0)
	}
	require.NoError(f.t, sys.Unsignal(d.notify))
	for addr, kind := range f.alive {
		if kind == "cq" && f.context[addr] == f.context[channel] {
			*dl.At[uintptr](cq) = addr
		}
	}
	return 0
}

// unplug takes a device's port out of its network, plug puts it back.
func (f *fakeLib) unplug(device int) {
	f.setPort(device, libibverbs.PortActive-1)
	f.raiseOn(device, portDown)
}

func (f *fakeLib) plug(device int) {
	f.setPort(device, libibverbs.PortActive)
	f.raiseOn(device, portUp)
}

func (f *fakeLib) setPort(device int, state uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[device].port = state
}

// remove takes a device out. insert puts it back: what was of it is freed.
func (f *fakeLib) remove(device int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[device]
	d.removed = true
	require.NoError(f.t, sys.Signal(d.async))
}

func (f *fakeLib) insert(device int) {
	f.forget(device)
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[device]
	for addr := range f.queues {
		if f.of(addr) == d {
			delete(f.queues, addr)
			delete(f.recvs, addr)
		}
	}
	d.removed, d.done = false, nil
	require.NoError(f.t, sys.Unsignal(d.async))
}
