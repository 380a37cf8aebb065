package verbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// CanDmabuf asks the driver without a dma-buf. A driver that can register one says that
// the descriptor is bad; a driver that cannot says so.
func (t *Transport) CanDmabuf() error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	if !t.lib.HasDmabuf() {
		return fmt.Errorf("dma-buf on %s: %w: %s is older than ibv_reg_dmabuf_mr", t.device, transport.ErrNotSupported, t.lib.Name())
	}
	mr, err := t.lib.RegDmabufMR(t.pd, 0, 0, 0, -1, libibverbs.AccessLocalWrite)
	switch {
	case err == nil:
		return t.lib.DeregMR(mr)
	case noDmabuf(err):
		return t.dmabufError(err)
	}
	return nil
}

// noDmabuf knows the answers of kernels and drivers that have no such call.
func noDmabuf(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.ENOSYS)
}

func (t *Transport) dmabufError(err error) error {
	if noDmabuf(err) {
		return fmt.Errorf("dma-buf on %s: %w: %w: the kernel or the device's driver cannot", t.device, transport.ErrNotSupported, err)
	}
	if errors.Is(err, syscall.EBADF) {
		return fmt.Errorf("dma-buf on %s: FD is no dma-buf: %w", t.device, err)
	}
	return fmt.Errorf("dma-buf on %s: %w", t.device, shortage(err))
}

// RegisterDmabuf makes a device's memory usable, in one registration.
func (t *Transport) RegisterDmabuf(m transport.Dmabuf, access transport.Access) (transport.Region, error) {
	r, err := t.registerDmabuf(m, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (t *Transport) registerDmabuf(m transport.Dmabuf, access transport.Access) (*region, error) {
	if err := t.checkDmabuf(&m, access); err != nil {
		return nil, err
	}
	if err := t.enter(); err != nil {
		return nil, err
	}
	defer t.leave()
	mr, err := t.lib.RegDmabufMR(t.pd, m.Off, uint64(m.SizeBytes), m.Addr, m.FD, t.accessFlags(access))
	if err != nil {
		return nil, t.dmabufError(err)
	}
	r := &region{owner: t, sizeBytes: int(m.SizeBytes), addr: m.Addr, chunkBytes: t.maxRegionBytes, device: true}
	r.adopt(mr)
	r.opened()
	return r, nil
}

func (t *Transport) checkDmabuf(m *transport.Dmabuf, access transport.Access) error {
	page := uint64(sys.PageSize())
	switch {
	case !t.lib.HasDmabuf():
		return fmt.Errorf("dma-buf on %s: %w: %s is older than ibv_reg_dmabuf_mr", t.device, transport.ErrNotSupported, t.lib.Name())
	case m.FD < 0:
		return fmt.Errorf("dma-buf: FD is %d, must be a descriptor", m.FD)
	case m.SizeBytes < 1:
		return fmt.Errorf("dma-buf: SizeBytes is %d, must be positive", m.SizeBytes)
	case m.Off%page != m.Addr%page:
		return fmt.Errorf("dma-buf: Off is %#x and Addr %#x, must be equal modulo the page size, %d", m.Off, m.Addr, page)
	case m.Off+uint64(m.SizeBytes) < m.Off || m.Addr+uint64(m.SizeBytes) < m.Addr:
		return fmt.Errorf("dma-buf: SizeBytes is %d, more than 64 bits address at %#x and %#x", m.SizeBytes, m.Off, m.Addr)
	case uint64(m.SizeBytes) > t.maxRegionBytes:
		return fmt.Errorf("dma-buf of %d bytes on %s: at most %d in one region: %w", m.SizeBytes, t.device, t.maxRegionBytes, transport.ErrNotSupported)
	}
	return checkAccess(access)
}

// CanDmabuf asks the port that new endpoints get.
func (g *Group) CanDmabuf() error {
	if t := g.preferred(); t != nil {
		return t.CanDmabuf()
	}
	return fmt.Errorf("dma-buf: no port is open: %w", transport.ErrNoResource)
}

// RegisterDmabuf makes a device's memory usable on every open port, and those
// to come: the group keeps a duplicate of the descriptor.
func (g *Group) RegisterDmabuf(m transport.Dmabuf, access transport.Access) (transport.Region, error) {
	own, err := sys.Duplicate(m.FD)
	if err != nil {
		return nil, fmt.Errorf("dma-buf: FD is %d: %w", m.FD, err)
	}
	m.FD = own.Raw()
	r, err := g.add(&groupRegion{owner: g, fd: own, register: func(t *Transport) (*region, error) {
		return t.registerDmabuf(m, access)
	}})
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	return r, nil
}

var (
	_ transport.DmabufCarrier = (*Transport)(nil)
	_ transport.DmabufCarrier = (*Group)(nil)
)
