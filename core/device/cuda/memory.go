package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// Memory is device memory that other processes may map. It has one owner, which
// closes it when no kernel uses it.
type Memory struct {
	d          *Device
	addr       libcuda.DevicePtr
	numBytes   uint64
	rdma       bool // other devices are to be let in
	shared     bool // other processes are to map it
	mapped     bool // made of an allocation and a range of addresses
	allocated  libcuda.Allocation
	ways               // how others may map it
	opened     bool    // by an IPC handle
	sharedFrom *Memory // the one that it was shared from, within this process
	sharing
}

// Address is where the device sees it.
func (m *Memory) Address() uint64 { return uint64(m.addr) }

// shareableBytes: smaller allocations may share a block with others, and an IPC
// handle opens the whole block.
const shareableBytes = 2 << 20

// Alloc allocates zeroed memory: by cuMemCreate where the device can export
// such memory by descriptor, else by cuMemAlloc.
func (d *Device) Alloc(numBytes uint64) (*Memory, error) {
	return d.alloc(&Memory{d: d, numBytes: numBytes})
}

// AllocShared is Alloc of memory that other processes are to map: by all ways that
// the driver gives for it.
func (d *Device) AllocShared(numBytes uint64) (*Memory, error) {
	return d.alloc(&Memory{d: d, numBytes: numBytes, shared: true})
}

func (d *Device) alloc(m *Memory) (*Memory, error) {
	numBytes := m.numBytes
	err := d.do(func() error {
		if err := m.make(); err != nil {
			return fmt.Errorf("%d bytes on device %d: %w", numBytes, d.dev, err)
		}
		if err := d.lib.MemsetAsync(m.addr, 0, numBytes, d.own); err != nil {
			return err
		}
		return d.finish()
	})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// finish waits for what was queued on the device's own stream. After an error it
// waits again: the caller is about to free what the device may still write to.
func (d *Device) finish() error {
	err := d.lib.StreamSynchronize(d.own)
	if err != nil {
		_ = d.lib.StreamSynchronize(d.own)
	}
	return err
}

// make makes the memory in the first way that the driver lets it. Close undoes
// what it has done.
func (m *Memory) make() error {
	types, err := m.d.handleTypes(m.shared)
	if err != nil {
		return err
	}
	if types&libcuda.HandleFabric != 0 && m.createForFabric(types) {
		return m.mapIt()
	}
	if types &= libcuda.HandlePosixFD; types != 0 {
		if err := m.create(types); err != nil {
			return err
		}
		return m.mapIt()
	}
	numBytes := (m.numBytes + shareableBytes - 1) / shareableBytes * shareableBytes
	m.addr, err = m.d.lib.MemAlloc(numBytes)
	m.numBytes = numBytes
	return err
}

// prop describes memory of a device that is exported by handles of these types.
func (d *Device) prop(types int32) *libcuda.AllocationProp {
	return &libcuda.AllocationProp{
		Type: libcuda.AllocationPinned, HandleTypes: types,
		Location: libcuda.MemLocation{Type: libcuda.LocationDevice, ID: int32(d.dev)},
	}
}

// whole is how much of such memory is mapped for so many bytes.
func (d *Device) whole(numBytes uint64, prop *libcuda.AllocationProp) (uint64, error) {
	granularity, err := d.lib.Granularity(prop, libcuda.GranularityRecommended)
	if err != nil {
		return 0, err
	}
	return (numBytes + granularity - 1) / granularity * granularity, nil
}

// create makes an allocation that is not mapped yet, or changes nothing.
func (m *Memory) create(types int32) error {
	prop := m.d.prop(types)
	if m.rdma {
		prop.RDMACapable = 1
	}
	numBytes, err := m.d.whole(m.numBytes, prop)
	if err != nil {
		return err
	}
	a, err := m.d.lib.MemCreate(numBytes, prop)
	if err != nil {
		return err
	}
	m.allocated, m.numBytes, m.types = a, numBytes, types
	return nil
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
	return lib.SetAccess(p, m.numBytes, &libcuda.AccessDesc{Location: m.d.prop(0).Location, Flags: libcuda.AccessReadWrite})
}

// Close frees the memory, or leaves that to the last one it is shared with.
// Idempotent; without a context nothing is freed, and it may be called again.
func (m *Memory) Close() error {
	if m.sharedFrom != nil {
		return m.unshare()
	}
	if m.keep() {
		return nil
	}
	return m.free(m.d)
}

// Closed says whether Close would do nothing: the driver was asked to free the
// memory, whatever it said.
func (m *Memory) Closed() bool { return m.addr == 0 && m.allocated == 0 }

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
		if addr != 0 && errors.Join(all...) == nil { // addresses that may be mapped are not free
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
	size uint64
}

// AllocHost allocates pinned host memory.
func (d *Device) AllocHost(numBytes uint64) (*HostMemory, error) {
	m := &HostMemory{d: d, size: numBytes}
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

// Address is where the device sees it.
func (m *HostMemory) Address() uint64 { return uint64(m.addr) }

// Bytes is the memory as this process sees it, until Close.
func (m *HostMemory) Bytes() []byte { return bytesAt(m.host, m.size) }

// Words is the same in words.
func (m *HostMemory) Words() []uint64 { return unsafe.Slice(dl.At[uint64](m.host), m.size/8) }

// Closed is that of Memory.
func (m *HostMemory) Closed() bool { return m.host == 0 }

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
