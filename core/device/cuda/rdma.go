package cuda

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/sys"
)

// ErrNoRDMA means that other devices cannot be let into this one's memory.
var ErrNoRDMA = errors.New("no dma-buf of device memory")

// rdma is what a device can as to other devices in its memory.
type rdma struct {
	ordersWrites bool // what they write is visible in order
}

// canRDMA says why AllocRDMA cannot work, wrapping ErrNoRDMA.
func (d *Device) canRDMA() (r rdma, err error) {
	byHand, err := d.mapsByHand()
	if err != nil {
		return r, err
	}
	return rdmaOf(d.lib, d.dev, byHand)
}

// rdmaOf asks a device. byHand: whether its memory is mapped by hand.
func rdmaOf(lib *libcuda.Library, dev libcuda.Device, byHand bool) (r rdma, err error) {
	var values [4]int
	for i, a := range [...]int{
		libcuda.AttrDMABufSupported, libcuda.AttrGPUDirectRDMAWithVMM,
		libcuda.AttrGPUDirectRDMAWriteOrders, libcuda.AttrGPUDirectRDMAFlushes,
	} {
		if values[i], err = lib.DeviceAttribute(dev, a); err != nil {
			return r, err
		}
	}
	r.ordersWrites = values[2] >= libcuda.WritesOrderedForOwner
	switch {
	case values[0] == 0:
		return r, fmt.Errorf("device %d: %w: the driver or the device has none", dev, ErrNoRDMA)
	case byHand && values[1] == 0:
		return r, fmt.Errorf("device %d: %w: not of memory that is mapped by hand", dev, ErrNoRDMA)
	case !r.ordersWrites && values[3]&libcuda.FlushByHost == 0:
		return r, fmt.Errorf("device %d: %w: nothing says when its kernels see what others wrote", dev, ErrNoRDMA)
	}
	return r, nil
}

// AllocRDMA is Alloc of memory that other devices, such as NICs, may be let
// into. An error that wraps ErrNoRDMA: that is not possible here.
func (d *Device) AllocRDMA(numBytes uint64) (*Memory, error) {
	if _, err := d.canRDMA(); err != nil {
		return nil, err
	}
	page := uint64(sys.PageSize())
	return d.alloc(&Memory{d: d, numBytes: (numBytes + page - 1) / page * page, rdma: true})
}

// Dmabuf gives a dma-buf of all of the memory, which the caller owns: of memory
// of AllocRDMA. An error that wraps ErrNoRDMA: the driver cannot, in spite of
// what it said.
func (m *Memory) Dmabuf() (fd int, err error) {
	made := false
	err = m.d.do(func() (err error) {
		fd, err = m.d.lib.DMABuf(m.addr, m.numBytes)
		made = err == nil
		return err
	})
	switch {
	case errors.Is(err, libcuda.ErrNotSupported):
		err = fmt.Errorf("%w: %w", ErrNoRDMA, err)
	case err != nil && made: // the context could not be put back
		err = errors.Join(err, sys.Own(fd).Close())
	}
	return fd, err
}

// Flush returns what makes writes of other devices visible to kernels that run;
// nil if the device sees to that itself.
func (d *Device) Flush() (func() error, error) {
	r, err := d.canRDMA()
	if err != nil || r.ordersWrites {
		return nil, err
	}
	return func() error { return d.do(d.lib.FlushRDMAWrites) }, nil
}
