package libcuda

// Handles of the driver. The zero value is none.
type (
	Device    int32
	Context   uintptr
	DevicePtr uint64
	Stream    uintptr // 0 is the legacy default stream
	Event     uintptr
	Module    uintptr
	Function  uintptr
	Graph     uintptr
	GraphExec uintptr
	// Allocation is physical memory without an address.
	Allocation uint64
)

// IPCHandle is a CUipcMemHandle: bytes for another process.
type IPCHandle [IPCHandleBytes]byte

// FabricHandle is a CUmemFabricHandle: bytes for another process, which the drivers of
// the two handle.
type FabricHandle [FabricHandleBytes]byte

// UUID is a CUuuid.
type UUID [UUIDBytes]byte

// MemLocation mirrors CUmemLocation.
type MemLocation struct {
	Type int32 `c:"type"`
	ID   int32 `c:"id"`
}

// AllocationProp mirrors CUmemAllocationProp.
type AllocationProp struct {
	Type          int32       `c:"type"`
	HandleTypes   int32       `c:"requestedHandleTypes"`
	Location      MemLocation `c:"location"`
	Win32Metadata uintptr     `c:"win32HandleMetaData"`
	Compression   uint8       `c:"allocFlags.compressionType"`
	RDMACapable   uint8       `c:"allocFlags.gpuDirectRDMACapable"`
	Usage         uint16      `c:"allocFlags.usage"`
	Reserved      [4]uint8    `c:"allocFlags.reserved"`
}

// AccessDesc mirrors CUmemAccessDesc.
type AccessDesc struct {
	Location MemLocation `c:"location"`
	Flags    int32       `c:"flags"`
}
