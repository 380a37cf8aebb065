package cudaipc

import (
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// View is another rank's memory as this one has it.
type View struct {
	mem  *cuda.Memory
	path string
	hold func(on bool) // with an IPC handle: tells the owner
	mu   sync.Mutex
}

// Address is where it begins in this process and on this device.
func (v *View) Address() uint64 { return v.mem.Address() }

// Path is "process", "fd" or "ipc".
func (v *View) Path() string { return v.path }

// Close lets the memory go. No kernel of this rank reaches for it. Idempotent;
// after an error it may be called again.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.mem.Close()
	if v.hold != nil && err == nil {
		v.hold(false)
		v.hold = nil
	}
	return err
}

// Map maps numBytes of a rank's memory, and waits until the deadline for the
// rank to offer it. It ends early when the rank's process does. Errors name the
// rank; those of a card that nobody can have made wrap transport.ErrMetadata, of
// one with less memory transport.ErrMismatch.
func Map(dom transport.Domain, dev *cuda.Device, rank int, numBytes uint64, until time.Time) (*View, error) {
	v, err := mapRank(dom, dev, rank, numBytes, until)
	if err != nil {
		return nil, fmt.Errorf("memory of rank %d: %w", rank, err)
	}
	return v, nil
}

func mapRank(dom transport.Domain, dev *cuda.Device, rank int, numBytes uint64, until time.Time) (*View, error) {
	c, slab, err := await(dom, rank, until)
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
		return borrow(c, dev)
	case c.kind == byFD:
		return byDescriptor(c, dev, numBytes, until)
	case same:
		return nil, fmt.Errorf("it is on another device of this process, and the driver cannot map memory by descriptor: use one process per device")
	}
	return byHandle(c, dev, slab, dom.Rank())
}

// await looks for a rank's card.
func await(dom transport.Domain, rank int, until time.Time) (*card, transport.Segment, error) {
	for {
		slab, err := dom.Slab(rank, cardSlab)
		if err == nil && slab.SizeBytes() < slabBytes {
			return nil, nil, fmt.Errorf("%w: %w: slab of %d bytes", transport.ErrMetadata, errForm, slab.SizeBytes())
		}
		if err == nil {
			if n := slab.Word(0).Load(); n != 0 {
				c, err := parseCard(slab.Bytes(cardOff, int64(min(n, holdersOff-cardOff))), rank, dom.NumRanks())
				return c, slab, err
			}
		}
		if p := dom.Process(rank); p == nil {
			return nil, nil, fmt.Errorf("the rank is absent")
		} else if p.Dying() {
			return nil, nil, fmt.Errorf("%w before it offered any", transport.ErrDead)
		}
		if !time.Now().Before(until) {
			if err == nil {
				err = sys.ErrTimeout
			}
			return nil, nil, fmt.Errorf("it was not offered before the deadline: %w", err)
		}
		time.Sleep(time.Millisecond)
	}
}

func borrow(c *card, dev *cuda.Device) (*View, error) {
	mem, ok := offered.Load(c.nonce)
	if !ok {
		return nil, fmt.Errorf("%w: it was offered in this process and is no more", transport.ErrDead)
	}
	lent, err := mem.(*cuda.Memory).Lend(dev)
	if err != nil {
		return nil, err
	}
	return &View{mem: lent, path: "process"}, nil
}

func byDescriptor(c *card, dev *cuda.Device, numBytes uint64, until time.Time) (*View, error) {
	fd, err := fetch(c, until)
	if err != nil {
		return nil, err
	}
	defer sys.CloseAll(fd)
	mem, err := dev.ImportFD(fd.Raw(), numBytes)
	if err != nil {
		return nil, err
	}
	return &View{mem: mem, path: "fd"}, nil
}

func byHandle(c *card, dev *cuda.Device, slab transport.Segment, self int) (*View, error) {
	hold := func(on bool) {
		n := uint64(0)
		if on {
			n = 1
		}
		slab.Word(holdersOff + int64(self)*8).Store(n)
	}
	slab.Retain() // the owner may be replaced in the domain meanwhile
	hold(true)
	mem, err := dev.OpenIPC(&c.handle, c.numBytes)
	if err != nil {
		hold(false)
		slab.Release()
		return nil, err
	}
	return &View{mem: mem, path: "ipc", hold: func(on bool) {
		hold(on)
		slab.Release()
	}}, nil
}
