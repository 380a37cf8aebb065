package libcuda

// Values of cuda.h. A test compares each with the header, by the table in
// consts_test.go.
const (
	// Attributes of a device.
	AttrMultiprocessorCount      = 16
	AttrComputeCapabilityMajor   = 75
	AttrComputeCapabilityMinor   = 76
	AttrVMMSupported             = 102
	AttrHandlePosixFDSupported   = 103
	AttrHandleFabricSupported    = 128
	AttrGPUDirectRDMAWithVMM     = 110
	AttrDMABufSupported          = 124
	AttrGPUDirectRDMAWriteOrders = 118
	AttrGPUDirectRDMAFlushes     = 117

	// What a device writes of others is ordered for, and may be flushed for.
	WritesOrderedForOwner = 100
	FlushToOwner          = 100
	FlushCurrentContext   = 0
	FlushByHost           = 1

	// Attributes of a pair of devices.
	P2PNativeAtomics = 3 // all that one device's kernels can do to its own memory

	// Pinned host memory.
	HostAllocPortable  = 1
	MemAttachGlobal    = 1
	HostAllocDeviceMap = 2

	// Memory that is mapped by hand.
	AllocationPinned        = 1
	HandlePosixFD           = 1
	HandleFabric            = 8
	LocationDevice          = 1
	AccessReadWrite         = 3
	GranularityRecommended  = 1
	RangeHandleDMABuf       = 1
	IPCLazyEnablePeerAccess = 1
	IPCHandleBytes          = 64
	UUIDBytes               = 16
	FabricHandleBytes       = 64
	MaxPCIBusIDBytes        = 16
	StreamNonBlocking       = 1
	EventDisableTiming      = 2
	CaptureStatusActive     = 1
	CaptureModeGlobal       = 0
	CaptureModeThreadLocal  = 1
	CaptureModeRelaxed      = 2

	// How a launch names its parameter block.
	LaunchParamEnd           = 0
	LaunchParamBufferPointer = 1
	LaunchParamBufferSize    = 2
	// Options of loading a module.
	JITErrorLogBuffer      = 5
	JITErrorLogBufferBytes = 6
)

// FabricSince is the version of drivers that know fabric handles.
const FabricSince = 12030
