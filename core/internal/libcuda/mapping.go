package libcuda

import (
	"runtime"
	"unsafe"
)

// MemCreate allocates physical memory, without an address.
func (l *Library) MemCreate(numBytes uint64, prop *AllocationProp) (Allocation, error) {
	a := new(Allocation)
	r := l.call.memCreate.Call(uintptr(unsafe.Pointer(a)), uintptr(numBytes), uintptr(unsafe.Pointer(prop)), 0)
	return *a, l.check("cuMemCreate", r)
}

// MemRelease gives up a handle. The memory goes with its last handle and its
// last mapping.
func (l *Library) MemRelease(a Allocation) error {
	return l.check("cuMemRelease", l.call.memRelease.Call(uintptr(a)))
}

// Granularity is what sizes and addresses of such memory are multiples of.
func (l *Library) Granularity(prop *AllocationProp, option int) (uint64, error) {
	n := new(uint64)
	r := l.call.memGetAllocationGranularity.Call(uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(prop)), uintptr(option))
	return *n, l.check("cuMemGetAllocationGranularity", r)
}

// AddressReserve reserves addresses without memory.
func (l *Library) AddressReserve(numBytes, alignment uint64) (DevicePtr, error) {
	p := new(DevicePtr)
	r := l.call.memAddressReserve.Call(uintptr(unsafe.Pointer(p)), uintptr(numBytes), uintptr(alignment), 0, 0)
	return *p, l.check("cuMemAddressReserve", r)
}

// AddressFree gives reserved addresses back.
func (l *Library) AddressFree(p DevicePtr, numBytes uint64) error {
	return l.check("cuMemAddressFree", l.call.memAddressFree.Call(uintptr(p), uintptr(numBytes)))
}

// MemMap puts memory at reserved addresses. SetAccess makes it usable.
func (l *Library) MemMap(p DevicePtr, numBytes uint64, a Allocation) error {
	return l.check("cuMemMap", l.call.memMap.Call(uintptr(p), uintptr(numBytes), 0, uintptr(a), 0))
}

// MemUnmap takes memory off its addresses.
func (l *Library) MemUnmap(p DevicePtr, numBytes uint64) error {
	return l.check("cuMemUnmap", l.call.memUnmap.Call(uintptr(p), uintptr(numBytes)))
}

// SetAccess says from where mapped memory may be used, and how.
func (l *Library) SetAccess(p DevicePtr, numBytes uint64, desc *AccessDesc) error {
	r := l.call.memSetAccess.Call(uintptr(p), uintptr(numBytes), uintptr(unsafe.Pointer(desc)), 1)
	return l.check("cuMemSetAccess", r)
}

// ExportFD gives a descriptor of memory, which the caller owns.
func (l *Library) ExportFD(a Allocation) (int, error) {
	fd := new(int32)
	r := l.call.memExportToShareableHandle.Call(uintptr(unsafe.Pointer(fd)), uintptr(a), HandlePosixFD, 0)
	return int(*fd), l.check("cuMemExportToShareableHandle", r)
}

// ImportFD makes memory of a descriptor, which stays the caller's.
func (l *Library) ImportFD(fd int) (Allocation, error) {
	a := new(Allocation)
	r := l.call.memImportFromShareableHandle.Call(uintptr(unsafe.Pointer(a)), uintptr(fd), HandlePosixFD)
	return *a, l.check("cuMemImportFromShareableHandle", r)
}

// ExportFabric names memory to other processes, also those that share neither
// sockets nor the kernel: the handle keeps nothing.
func (l *Library) ExportFabric(a Allocation) (FabricHandle, error) {
	h := new(FabricHandle)
	r := l.call.memExportToShareableHandle.Call(uintptr(unsafe.Pointer(h)), uintptr(a), HandleFabric, 0)
	return *h, l.check("cuMemExportToShareableHandle", r)
}

// ImportFabric makes memory of such a handle. ErrNotPermitted: this process has not
// the IMEX channel of the one that made it.
func (l *Library) ImportFabric(h *FabricHandle) (Allocation, error) {
	a := new(Allocation)
	r := l.call.memImportFromShareableHandle.Call(uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(h)), HandleFabric)
	return *a, l.check("cuMemImportFromShareableHandle", r)
}

// DMABuf gives a dma-buf descriptor of device memory, which the caller owns.
// Address and size are multiples of the host's page size. ErrNotSupported: the
// driver cannot.
func (l *Library) DMABuf(p DevicePtr, numBytes uint64) (int, error) {
	if l.call.memGetHandleForAddressRange == 0 {
		return -1, &Error{Call: "cuMemGetHandleForAddressRange", Code: ErrNotSupported}
	}
	fd := new(int32)
	r := l.call.memGetHandleForAddressRange.Call(uintptr(unsafe.Pointer(fd)), uintptr(p), uintptr(numBytes), RangeHandleDMABuf, 0)
	return int(*fd), l.check("cuMemGetHandleForAddressRange", r)
}

// FlushRDMAWrites makes what other devices have written into the current
// context's memory visible to its kernels. ErrNotSupported: the driver cannot.
func (l *Library) FlushRDMAWrites() error {
	if l.call.flushGPUDirectRDMAWrites == 0 {
		return &Error{Call: "cuFlushGPUDirectRDMAWrites", Code: ErrNotSupported}
	}
	return l.check("cuFlushGPUDirectRDMAWrites", l.call.flushGPUDirectRDMAWrites.Call(FlushCurrentContext, FlushToOwner))
}

// IPCHandleOf names device memory to other processes.
func (l *Library) IPCHandleOf(p DevicePtr) (IPCHandle, error) {
	h := new(IPCHandle)
	r := l.call.ipcGetMemHandle.Call(uintptr(unsafe.Pointer(h)), uintptr(p))
	return *h, l.check("cuIpcGetMemHandle", r)
}

// OpenIPCHandle maps another process's memory. The process that made the handle
// cannot open it.
func (l *Library) OpenIPCHandle(h *IPCHandle) (DevicePtr, error) {
	p := new(DevicePtr)
	var r uintptr
	if runtime.GOARCH == "amd64" {
		// The handle goes by value: in the System V ABI a struct of this size
		// lies on the stack, after the six arguments that registers have.
		w := (*[IPCHandleBytes / 8]uintptr)(unsafe.Pointer(h))
		r = l.call.ipcOpenMemHandle.Call(uintptr(unsafe.Pointer(p)), IPCLazyEnablePeerAccess, 0, 0, 0, 0,
			w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
	} else { // in that of arm64 by a pointer to a copy
		r = l.call.ipcOpenMemHandle.Call(uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(h)), IPCLazyEnablePeerAccess)
	}
	return *p, l.check("cuIpcOpenMemHandle_v2", r)
}

// CloseIPCHandle unmaps what OpenIPCHandle mapped.
func (l *Library) CloseIPCHandle(p DevicePtr) error {
	return l.check("cuIpcCloseMemHandle", l.call.ipcCloseMemHandle.Call(uintptr(p)))
}
