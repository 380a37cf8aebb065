package cudaipc

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// View is another rank's memory as this one has it.
type View struct {
	mem     *cuda.Memory
	path    string
	memDesc *memDesc
	held    *sys.FD // with an IPC handle: the connection that tells the owner
	mu      sync.Mutex
}

// Address is where it begins in this process and on this device.
func (v *View) Address() uint64 { return v.mem.Address() }

// Device is the number of the device that has the memory, as in cuda.Links.
func (v *View) Device() uint64 { return cuda.DeviceNumber(v.memDesc.device) }

// Path is "process", "fd", "fabric" or "ipc".
func (v *View) Path() string { return v.path }

// Close releases the memory. No kernel of this rank reaches for it. Idempotent; after an
// error it may be called again.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.mem.Close()
	if v.held != nil && err == nil {
		leave(v.held)
		v.held = nil
	}
	return err
}

// Map maps numBytes of a rank's memory, and waits for the rank to offer it. It ends early
// when the rank's process does. Errors name the rank. Those of a memory descriptor that
// no rank can have made wrap domain.ErrMetadata. Those of one with less memory, by its
// own word or the driver's, wrap transport.ErrMismatch.
func Map(dom domain.Domain, dev *cuda.Device, rank int, numBytes uint64, w Wait) (*View, error) {
	v, err := mapRank(dom, dev, rank, numBytes, w)
	if err != nil {
		return nil, fmt.Errorf("memory of rank %d: %w", rank, err)
	}
	return v, nil
}

func mapRank(dom domain.Domain, dev *cuda.Device, rank int, numBytes uint64, w Wait) (*View, error) {
	c, err := await(dom, rank, w)
	if err != nil {
		return nil, err
	}
	if c.numBytes < numBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, this rank's configuration needs %d", transport.ErrMismatch, c.numBytes, numBytes)
	}
	uuid, err := dev.UUID()
	if err != nil {
		return nil, err
	}
	switch same := c.process == process(); {
	case same && c.device == uuid:
		return borrow(c, dev, numBytes)
	case c.ways != byIPC:
		return byExport(c, dev, numBytes, w)
	case same:
		return nil, fmt.Errorf("it is on another device of this process, and the driver cannot map memory by descriptor or fabric handle: use one process per device")
	}
	return byHandle(c, dev, numBytes, w)
}

// await looks for a rank's memory descriptor.
func await(dom domain.Domain, rank int, w Wait) (*memDesc, error) {
	for {
		slab, err := dom.Slab(rank, memDescSlab)
		if err == nil && slab.SizeBytes() < slabBytes {
			return nil, fmt.Errorf("%w: %w: slab of %d bytes", domain.ErrMetadata, errForm, slab.SizeBytes())
		}
		if err == nil {
			if n := slab.Word(0).Load(); n != 0 {
				return parseMemDesc(slab.Bytes(memDescOff, int64(min(n, slabBytes-memDescOff))), rank, dom.NumRanks())
			}
		}
		if p := dom.Process(rank); p == nil {
			return nil, fmt.Errorf("the rank is absent")
		} else if p.Dying() {
			return nil, fmt.Errorf("%w before it offered any", domain.ErrExited)
		}
		if err == nil {
			err = sys.ErrTimeout
		}
		if err := w.over(fmt.Errorf("it was not offered before the deadline: %w", err)); err != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
}

func borrow(c *memDesc, dev *cuda.Device, numBytes uint64) (*View, error) {
	mem, ok := offered.Load(c.nonce)
	if !ok {
		return nil, fmt.Errorf("%w: it was offered in this process and is no more", domain.ErrExited)
	}
	of := mem.(*cuda.Memory)
	if of.NumBytes() < numBytes {
		return nil, wrongLength(c, of.NumBytes())
	}
	shared, err := of.Share(dev)
	if err != nil {
		return nil, err
	}
	return &View{mem: shared, path: "process", memDesc: c}, nil
}

// wrongLength is the error of a memory descriptor that promises more than there is.
func wrongLength(c *memDesc, numBytes uint64) error {
	return fmt.Errorf("%w: its memory descriptor says %d bytes, it has %d", transport.ErrMismatch, c.numBytes, numBytes)
}

// byExport maps memory by descriptor, and where that cannot be had, or leads to
// nothing, by fabric handle.
func byExport(c *memDesc, dev *cuda.Device, numBytes uint64, w Wait) (v *View, err error) {
	if c.ways&byFD != 0 {
		v, err = byDescriptor(c, dev, numBytes, w)
		if err == nil || c.ways&byFabric == 0 || errors.Is(err, ErrStopped) || errors.Is(err, transport.ErrMismatch) {
			return v, err
		}
	}
	v, other := byFabricHandle(c, dev, numBytes)
	if other != nil {
		return nil, errors.Join(err, other)
	}
	return v, nil
}

func byDescriptor(c *memDesc, dev *cuda.Device, numBytes uint64, w Wait) (*View, error) {
	conn, fd, err := visit(c, w)
	if err != nil {
		return nil, err
	}
	defer sys.CloseAll(conn, fd)
	mem, err := dev.ImportFD(fd.Raw(), numBytes)
	return imported(c, mem, "fd", numBytes, err)
}

// byFabricHandle asks no process: a process that has the memory descriptor and the
// owner's IMEX channel has the memory, as long as it is there.
func byFabricHandle(c *memDesc, dev *cuda.Device, numBytes uint64) (*View, error) {
	h := libcuda.FabricHandle(c.handle)
	mem, err := dev.ImportFabric(&h, numBytes)
	return imported(c, mem, "fabric", numBytes, err)
}

func imported(c *memDesc, mem *cuda.Memory, path string, numBytes uint64, err error) (*View, error) {
	if errors.Is(err, cuda.ErrTooSmall) {
		err = fmt.Errorf("%w: its memory descriptor says %d bytes, the driver maps no %d of them: %w", transport.ErrMismatch, c.numBytes, numBytes, err)
	}
	if err != nil {
		return nil, err
	}
	return &View{mem: mem, path: path, memDesc: c}, nil
}

// byHandle opens an IPC handle once the owner knows, and as long as that is so.
func byHandle(c *memDesc, dev *cuda.Device, numBytes uint64, w Wait) (*View, error) {
	conn, _, err := visit(c, w)
	if err != nil {
		return nil, err
	}
	h := libcuda.IPCHandle(c.handle)
	mem, err := dev.OpenIPC(&h)
	if err != nil {
		leave(conn)
		return nil, err
	}
	v := &View{mem: mem, path: "ipc", memDesc: c, held: conn}
	if mem.NumBytes() < numBytes {
		return nil, errors.Join(wrongLength(c, mem.NumBytes()), v.Close())
	}
	return v, nil
}
