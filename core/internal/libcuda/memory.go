package libcuda

import "unsafe"

// MemAlloc allocates device memory.
func (l *Library) MemAlloc(numBytes uint64) (DevicePtr, error) {
	p := new(DevicePtr)
	r := l.call.memAlloc.Call(uintptr(unsafe.Pointer(p)), uintptr(numBytes))
	return *p, l.check("cuMemAlloc_v2", r)
}

// MemAllocManaged allocates memory that device and host see at one address, and that
// moves to the side that uses it: for tests.
func (l *Library) MemAllocManaged(numBytes uint64) (DevicePtr, error) {
	p := new(DevicePtr)
	r := l.call.memAllocManaged.Call(uintptr(unsafe.Pointer(p)), uintptr(numBytes), MemAttachGlobal)
	return *p, l.check("cuMemAllocManaged", r)
}

// MemFree frees what MemAlloc or MemAllocManaged allocated. It synchronises the device.
func (l *Library) MemFree(p DevicePtr) error {
	return l.check("cuMemFree_v2", l.call.memFree.Call(uintptr(p)))
}

// MemInfo is the free and the total memory of the current context's device.
func (l *Library) MemInfo() (free, total uint64, err error) {
	out := new([2]uint64)
	r := l.call.memGetInfo.Call(uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])))
	return out[0], out[1], l.check("cuMemGetInfo_v2", r)
}

// HostAlloc allocates pinned host memory, at a C address.
func (l *Library) HostAlloc(numBytes uint64, flags uint32) (uintptr, error) {
	p := new(uintptr)
	r := l.call.memHostAlloc.Call(uintptr(unsafe.Pointer(p)), uintptr(numBytes), uintptr(flags))
	return *p, l.check("cuMemHostAlloc", r)
}

// HostFree frees what HostAlloc allocated.
func (l *Library) HostFree(p uintptr) error {
	return l.check("cuMemFreeHost", l.call.memFreeHost.Call(p))
}

// HostDevicePtr is where the device sees pinned host memory.
func (l *Library) HostDevicePtr(p uintptr) (DevicePtr, error) {
	d := new(DevicePtr)
	r := l.call.memHostGetDevicePointer.Call(uintptr(unsafe.Pointer(d)), p, 0)
	return *d, l.check("cuMemHostGetDevicePointer_v2", r)
}

// MemsetAsync sets bytes, in order on a stream.
func (l *Library) MemsetAsync(p DevicePtr, value byte, numBytes uint64, s Stream) error {
	return l.check("cuMemsetD8Async", l.call.memsetD8Async.Call(uintptr(p), uintptr(value), uintptr(numBytes), uintptr(s)))
}

// CopyToDeviceAsync copies from a C address, in order on a stream.
func (l *Library) CopyToDeviceAsync(to DevicePtr, from uintptr, numBytes uint64, s Stream) error {
	return l.check("cuMemcpyHtoDAsync_v2", l.call.memcpyHtoDAsync.Call(uintptr(to), from, uintptr(numBytes), uintptr(s)))
}

// CopyToHostAsync copies to a C address, in order on a stream.
func (l *Library) CopyToHostAsync(to uintptr, from DevicePtr, numBytes uint64, s Stream) error {
	return l.check("cuMemcpyDtoHAsync_v2", l.call.memcpyDtoHAsync.Call(to, uintptr(from), uintptr(numBytes), uintptr(s)))
}

// CopyAsync copies between device addresses, in order on a stream.
func (l *Library) CopyAsync(to, from DevicePtr, numBytes uint64, s Stream) error {
	return l.check("cuMemcpyDtoDAsync_v2", l.call.memcpyDtoDAsync.Call(uintptr(to), uintptr(from), uintptr(numBytes), uintptr(s)))
}

// AddressRange is the allocation, or the mapping, that an address lies in.
func (l *Library) AddressRange(p DevicePtr) (base DevicePtr, numBytes uint64, err error) {
	out := new([2]uint64)
	r := l.call.memGetAddressRange.Call(uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])), uintptr(p))
	return DevicePtr(out[0]), out[1], l.check("cuMemGetAddressRange_v2", r)
}
