// Package cudaring makes the memory of links with messages that kernels fill and read. It
// is the device's own where the carrier can register that, else pinned host memory, which
// kernels reach over the bus and every carrier can register. Which of the two it is
// changes nothing for its users: core/link, core/group/proxy.
//
// multihost.Config.Rings takes it; a buffer of core/ep/cuda hands the addresses to its
// kernels.
package cudaring

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// Maker makes rings for one carrier and one device.
type Maker struct {
	dev *cuda.Device
	why error // why rings are in host memory; nil: they are not
	// left is what For has made to try, and could not free; nil: nothing.
	left *Ring
}

// For looks what is possible.
func For(dev *cuda.Device, carrier transport.Transport) *Maker {
	m := &Maker{dev: dev}
	if c, ok := carrier.(transport.DmabufCarrier); !ok {
		m.why = fmt.Errorf("%s registers no device memory", carrier.Name())
	} else if m.why = c.CanDmabuf(); m.why == nil {
		m.why = m.try()
	}
	return m
}

// try makes a dma-buf: some drivers only say then that they cannot.
func (m *Maker) try() error {
	r, err := m.make(1)
	err = errors.Join(err, r.free())
	if r.hasUnfreed() {
		m.left = r
	}
	return err
}

// Why says why rings are in pinned host memory; nil if they are in the device's.
func (m *Maker) Why() error { return m.why }

// Flush is what has to be called before a kernel is told of a message that has
// come (proxy.Config.Flush); nil if nothing has to.
func (m *Maker) Flush() (func() error, error) {
	if m.why != nil {
		return nil, nil
	}
	return m.dev.Flush()
}

// Ring is the memory of one ring, zeros. It is a domain.Segment: for a link. Of
// device memory Bytes returns nil, and Word is nothing to be called.
type Ring struct {
	dev    *cuda.Device
	device *cuda.Memory
	fd     *sys.FD
	host   *cuda.HostMemory
	size   int64
	refs   atomic.Int64
	closed error       // of the last Release
	keep   func(*Ring) // gets it with the last reference, in place of freeing it
}

var (
	_ domain.Segment       = (*Ring)(nil)
	_ domain.DmabufSegment = (*Ring)(nil)
)

// Make makes a ring. The caller releases it.
func (m *Maker) Make(sizeBytes int64) (*Ring, error) {
	if sizeBytes <= 0 {
		return nil, errSize(sizeBytes)
	}
	r, err := m.make(sizeBytes)
	if err != nil {
		return nil, fmt.Errorf("cudaring: %d bytes: %w", sizeBytes, errors.Join(err, r.free()))
	}
	return r, nil
}

func errSize(sizeBytes int64) error {
	return fmt.Errorf("cudaring: a ring of %d bytes is not possible", sizeBytes)
}

// make returns what there is also with an error: to be freed.
func (m *Maker) make(sizeBytes int64) (*Ring, error) {
	r := &Ring{dev: m.dev, size: sizeBytes}
	r.refs.Store(1)
	return r, r.allocate(m)
}

func (r *Ring) allocate(m *Maker) (err error) {
	if m.why != nil {
		r.host, err = m.dev.AllocHost(uint64(r.size))
		return err
	}
	if r.device, err = m.dev.AllocRDMA(uint64(r.size)); err != nil {
		return err
	}
	fd, err := r.device.Dmabuf()
	if err == nil {
		r.fd = sys.Own(fd)
	}
	return err
}

// Address is where kernels see it.
func (r *Ring) Address() uint64 {
	if r.device != nil {
		return r.device.Address()
	}
	return r.host.Address()
}

// Flush is what has to be called before a kernel is told of a message that has
// come to this ring, as Maker.Flush.
func (r *Ring) Flush() (func() error, error) {
	if r.device == nil {
		return nil, nil
	}
	return r.dev.Flush()
}

// Dmabuf says how a carrier registers it; false: as host memory.
func (r *Ring) Dmabuf() (transport.Dmabuf, bool) {
	if r.device == nil {
		return transport.Dmabuf{}, false
	}
	return transport.Dmabuf{FD: r.fd.Raw(), SizeBytes: r.size, Addr: r.device.Address()}, true
}

// Word is a word of host memory.
func (r *Ring) Word(off int64) *atomic.Uint64 { return sys.Word(r.host.Bytes(), off) }

// Bytes are those of host memory.
func (r *Ring) Bytes(off, n int64) []byte {
	if r.host == nil {
		return nil
	}
	return r.host.Bytes()[off : off+n : off+n]
}

// SizeBytes is its length.
func (r *Ring) SizeBytes() int64 { return r.size }

// Prefault does nothing: it is resident.
func (r *Ring) Prefault(int64, int64) {}

// Retain panics when the last reference is already gone.
func (r *Ring) Retain() {
	if r.refs.Add(1) <= 1 {
		panic("cudaring: Retain of memory that is already freed")
	}
}

// Release frees the memory with the last reference, or hands it to the Rings that
// have made it. No kernel uses it then.
func (r *Ring) Release() {
	switch n := r.refs.Add(-1); {
	case n == 0 && r.keep != nil:
		r.keep(r)
	case n == 0:
		r.closed = r.free()
	case n < 0:
		panic("cudaring: Release without Retain")
	}
}

// Close frees what Release has not freed; nil if nothing is left. What the driver
// has refused to free it says once. After the last Release.
func (r *Ring) Close() error {
	err := r.closed
	r.closed = nil
	if r.hasUnfreed() {
		err = r.free()
	}
	return err
}

// hasUnfreed reports whether there is memory that the driver was not asked to free.
func (r *Ring) hasUnfreed() bool {
	return r.device != nil && !r.device.Closed() || r.host != nil && !r.host.Closed()
}

func (r *Ring) free() error {
	var all []error
	if r.fd != nil {
		all = append(all, r.fd.Close())
	}
	if r.device != nil {
		all = append(all, r.device.Close())
	}
	if r.host != nil {
		all = append(all, r.host.Close())
	}
	return errors.Join(all...)
}
