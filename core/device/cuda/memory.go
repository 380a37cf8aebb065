package cuda

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// Memory is device memory that other processes may map. It has one owner, who
// closes it when no kernel uses it.
type Memory struct {
	d         *Device
	addr      libcuda.DevicePtr
	numBytes  uint64
	mapped    bool // made of an allocation and a range of addresses
	allocated libcuda.Allocation
	opened    bool    // by an IPC handle
	lender    *Memory // whose memory it is, within this process
	loans
}

// Address is where the device sees it.
func (m *Memory) Address() uint64 { return uint64(m.addr) }

// Alloc allocates zeroed memory: by cuMemCreate where the device can export
// such memory by descriptor, else by cuMemAlloc.
func (d *Device) Alloc(numBytes uint64) (*Memory, error) {
	m := &Memory{d: d, numBytes: numBytes}
	err := d.do(func() error {
		vmm, err := d.mapsByHand()
		if err != nil {
			return err
		}
		if vmm {
			err = m.create()
		} else {
			m.addr, err = d.lib.MemAlloc(numBytes)
		}
		if err != nil {
			return fmt.Errorf("%d bytes on device %d: %w", numBytes, d.dev, err)
		}
		if err := d.lib.MemsetAsync(m.addr, 0, numBytes, 0); err != nil {
			return err
		}
		return d.finish()
	})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// finish waits for what was queued on the default stream. After an error it
// waits again: the caller is about to free what the device may still write to.
func (d *Device) finish() error {
	err := d.lib.StreamSynchronize(0)
	if err != nil {
		_ = d.lib.StreamSynchronize(0)
	}
	return err
}

func (d *Device) mapsByHand() (bool, error) {
	vmm, err := d.lib.DeviceAttribute(d.dev, libcuda.AttrVMMSupported)
	if err != nil || vmm == 0 {
		return false, err
	}
	fd, err := d.lib.DeviceAttribute(d.dev, libcuda.AttrHandlePosixFDSupported)
	return fd != 0, err
}

func (d *Device) prop() *libcuda.AllocationProp {
	return &libcuda.AllocationProp{
		Type: libcuda.AllocationPinned, HandleTypes: libcuda.HandlePosixFD,
		Location: libcuda.MemLocation{Type: libcuda.LocationDevice, ID: int32(d.dev)},
	}
}

// create makes an allocation and maps it.
func (m *Memory) create() error {
	lib, prop := m.d.lib, m.d.prop()
	granularity, err := lib.Granularity(prop, libcuda.GranularityRecommended)
	if err != nil {
		return err
	}
	m.numBytes = (m.numBytes + granularity - 1) / granularity * granularity
	if m.allocated, err = lib.MemCreate(m.numBytes, prop); err != nil {
		return err
	}
	return m.mapIt()
}

// mapIt gives an allocation addresses. Close undoes what it has done.
func (m *Memory) mapIt() (err error) {
	lib := m.d.lib
	p, err := lib.AddressReserve(m.numBytes, 0)
	if err != nil {
		return err
	}
	m.addr = p
	if err := lib.MemMap(p, m.numBytes, m.allocated); err != nil {
		return err
	}
	m.mapped = true
	return lib.SetAccess(p, m.numBytes, &libcuda.AccessDesc{Location: m.d.prop().Location, Flags: libcuda.AccessReadWrite})
}

// Close frees the memory, or leaves that to the last one it is lent to.
// Idempotent; without a context nothing is freed, and it may be called again.
func (m *Memory) Close() error {
	if m.lender != nil {
		return m.giveBack()
	}
	if m.keep() {
		return nil
	}
	return m.free(m.d)
}

// free frees the memory, in the context of d.
func (m *Memory) free(d *Device) error {
	if m.addr == 0 && m.allocated == 0 {
		return nil
	}
	return d.do(func() error {
		lib, addr, allocated, mapped := d.lib, m.addr, m.allocated, m.mapped
		m.addr, m.allocated, m.mapped = 0, 0, false
		var all []error
		if m.opened {
			return lib.CloseIPCHandle(addr)
		}
		if allocated == 0 {
			return lib.MemFree(addr)
		}
		if mapped {
			all = append(all, lib.MemUnmap(addr, m.numBytes))
		}
		if addr != 0 {
			all = append(all, lib.AddressFree(addr, m.numBytes))
		}
		return errors.Join(append(all, lib.MemRelease(allocated))...)
	})
}

// HostMemory is pinned, zeroed host memory that the device sees.
type HostMemory struct {
	d    *Device
	host uintptr
	addr libcuda.DevicePtr
}

// AllocHost allocates pinned host memory.
func (d *Device) AllocHost(numBytes uint64) (*HostMemory, error) {
	m := &HostMemory{d: d}
	err := d.do(func() (err error) {
		if m.host, err = d.lib.HostAlloc(numBytes, libcuda.HostAllocPortable|libcuda.HostAllocDeviceMap); err != nil {
			return err
		}
		clear(bytesAt(m.host, numBytes))
		m.addr, err = d.lib.HostDevicePtr(m.host)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Close frees it, like that of Memory.
func (m *HostMemory) Close() error {
	if m.host == 0 {
		return nil
	}
	return m.d.do(func() error {
		host := m.host
		m.host = 0
		return m.d.lib.HostFree(host)
	})
}
