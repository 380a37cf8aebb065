package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/sys"
)

// sharing counts the users of a Memory besides its owner.
type sharing struct {
	mu         sync.Mutex
	numSharers int
	ownerDone  bool // the owner has closed it
}

// keep notes that the owner is done, also if the memory cannot be freed yet, and
// reports whether others are not.
func (m *Memory) keep() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ownerDone = true
	return m.numSharers > 0
}

// Share gives a second owner in this process, on the same device: the memory
// stays until both have closed it.
func (m *Memory) Share(to *Device) (*Memory, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.ownerDone || m.addr == 0:
		return nil, errors.New("the memory is closed")
	case to.dev != m.d.dev:
		return nil, fmt.Errorf("the memory is on device %d, not on %d", m.d.dev, to.dev)
	}
	m.numSharers++
	return &Memory{d: to, addr: m.addr, numBytes: m.numBytes, sharedFrom: m}, nil
}

// unshare ends a share.
func (m *Memory) unshare() error {
	if m.addr == 0 {
		return nil
	}
	of := m.sharedFrom
	of.mu.Lock()
	defer of.mu.Unlock()
	var err error
	if of.numSharers == 1 && of.ownerDone {
		if err = of.free(m.d); err != nil && of.addr != 0 {
			return err // it may be called again
		}
	}
	of.numSharers--
	m.addr = 0
	return err
}

// NumBytes is its size.
func (m *Memory) NumBytes() uint64 { return m.numBytes }

// Export gives a descriptor that another process can import, which the caller
// owns. What it stands for lives until the last process that has it closes it.
func (m *Memory) Export() (fd int, err error) {
	made := false
	err = m.d.do(func() (err error) {
		fd, err = m.d.lib.ExportFD(m.allocated)
		made = err == nil
		return err
	})
	if err != nil && made { // the context could not be put back
		err = errors.Join(err, sys.Own(fd).Close())
	}
	return fd, err
}

// IPCHandle names the memory to another process. It must be open nowhere when
// its owner closes it.
func (m *Memory) IPCHandle() (h libcuda.IPCHandle, err error) {
	err = m.d.do(func() (err error) {
		h, err = m.d.lib.IPCHandleOf(m.addr)
		return err
	})
	return h, err
}

// ErrTooSmall means that the driver does not map as much of another process's
// memory as it was asked to.
var ErrTooSmall = errors.New("not so much memory")

// ImportFD maps the first numBytes of another process's memory (or of another
// device's of this one) by a descriptor, which stays the caller's. ErrTooSmall if
// there is less.
func (d *Device) ImportFD(fd int, numBytes uint64) (*Memory, error) {
	return d.importBy(libcuda.HandlePosixFD, numBytes, func() (libcuda.Allocation, error) { return d.lib.ImportFD(fd) })
}

// importBy maps memory that take makes of a handle of such a type.
func (d *Device) importBy(handle int32, numBytes uint64, take func() (libcuda.Allocation, error)) (*Memory, error) {
	m := &Memory{d: d}
	err := d.do(func() (err error) {
		if m.numBytes, err = d.whole(numBytes, d.prop(handle)); err != nil {
			return err
		}
		if m.allocated, err = take(); err != nil {
			return err
		}
		if err = m.mapIt(); errors.Is(err, libcuda.ErrInvalidValue) {
			err = fmt.Errorf("%w: %w", ErrTooSmall, err)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// ImportFabric is ImportFD by a fabric handle. An error that wraps
// libcuda.ErrNotPermitted: this process has no IMEX channel of the owner's.
func (d *Device) ImportFabric(h *libcuda.FabricHandle, numBytes uint64) (*Memory, error) {
	return d.importBy(libcuda.HandleFabric, numBytes, func() (libcuda.Allocation, error) { return d.lib.ImportFabric(h) })
}

// OpenIPC maps another process's memory: as much as the driver says there is.
func (d *Device) OpenIPC(h *libcuda.IPCHandle) (*Memory, error) {
	m := &Memory{d: d, opened: true}
	err := d.do(func() (err error) {
		if m.addr, err = d.lib.OpenIPCHandle(h); err != nil {
			return err
		}
		base, size, err := d.lib.AddressRange(m.addr)
		m.numBytes = uint64(base) + size - uint64(m.addr)
		return err
	})
	if err != nil { // it may be open: the context could not be put back
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// UUID names the device, the same in all processes.
func (d *Device) UUID() (id libcuda.UUID, err error) { return d.lib.DeviceUUID(d.dev) }

// Synchronize waits until all work on the device that this process has
// launched is done. There is no deadline; it fails during a capture.
// A broken device says so each time that it is asked; after any other error it is
// asked again, because what was launched may still run.
func (d *Device) Synchronize() error {
	return d.do(func() error {
		err := d.lib.Synchronize()
		if err != nil && !IsCaptured(err) {
			err = d.lib.Synchronize()
		}
		return err
	})
}

// IsIdle reports whether a device runs nothing of what was launched before a
// Synchronize that returned err: it has ended well, or has found the device
// broken, which does nothing any more. Else the device was not asked.
func IsIdle(err error) bool {
	var of *libcuda.Error
	return err == nil || errors.As(err, &of) && of.Call == "cuCtxSynchronize" && !IsCaptured(err)
}

// Do calls f with the device's context current.
func (d *Device) Do(f func() error) error { return d.in(f) }

// IsCaptured reports whether a call failed because a stream is being captured:
// later it may succeed. The driver's codes of a capture are one range.
func IsCaptured(err error) bool {
	var code libcuda.Result
	return errors.As(err, &code) && code >= libcuda.ErrStreamCaptureUnsupport && code <= libcuda.ErrCaptureWrongThread
}
