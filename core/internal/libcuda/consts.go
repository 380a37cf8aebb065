package libcuda

// Values of cuda.h. A test compares each with the header, by the table in
// consts_test.go.
const (
	// Attributes of a device.
	AttrMaxThreadsPerBlock       = 1
	AttrMultiprocessorCount      = 16
	AttrClockRate                = 13 // kHz
	AttrIntegrated               = 18
	AttrComputeMode              = 20
	AttrMaxThreadsPerSM          = 39
	AttrMemoryBusWidth           = 37 // bits
	AttrMemoryClockRate          = 36 // kHz
	AttrL2CacheBytes             = 38
	AttrComputeCapabilityMajor   = 75
	AttrComputeCapabilityMinor   = 76
	AttrMaxSharedMemoryOptin     = 97 // bytes per block
	AttrVMMSupported             = 102
	AttrHandlePosixFDSupported   = 103
	AttrHandleFabricSupported    = 128
	AttrGPUDirectRDMAWithVMM     = 110
	AttrGPUDirectRDMASupported   = 116
	AttrDMABufSupported          = 124
	AttrHostNativeAtomics        = 86
	AttrCanUseHostPointer        = 91
	AttrGPUDirectRDMAWriteOrders = 118
	AttrGPUDirectRDMAFlushes     = 117

	// What a device writes of others is ordered for, and may be flushed for.
	WritesOrderedForOwner = 100
	FlushToOwner          = 100
	FlushCurrentContext   = 0
	FlushByHost           = 1

	// Attributes of a pair of devices.
	P2PPerformanceRank = 1
	P2PAccessSupported = 2
	P2PNativeAtomics   = 3 // all that one device's kernels can do to its own memory
	P2PArrayAccess     = 4

	// Which processes may use a device.
	ComputeModeProhibited = 2

	// Pinned host memory.
	HostAllocPortable  = 1
	MemAttachGlobal    = 1
	HostAllocDeviceMap = 2

	// Memory that is mapped by hand.
	AllocationPinned         = 1
	HandleNone               = 0
	HandlePosixFD            = 1
	HandleFabric             = 8
	LocationDevice           = 1
	AccessReadWrite          = 3
	GranularityMinimum       = 0
	GranularityRecommended   = 1
	RangeHandleDMABuf        = 1
	IPCLazyEnablePeerAccess  = 1
	IPCHandleBytes           = 64
	UUIDBytes                = 16
	FabricHandleBytes        = 64
	MaxPCIBusIDBytes         = 16
	StreamNonBlocking        = 1
	EventBlockingSync        = 1
	EventDisableTiming       = 2
	CaptureStatusNone        = 0
	CaptureStatusActive      = 1
	CaptureStatusInvalidated = 2
	CaptureModeGlobal        = 0
	CaptureModeThreadLocal   = 1
	CaptureModeRelaxed       = 2

	// How a launch names its parameter block.
	LaunchParamEnd           = 0
	LaunchParamBufferPointer = 1
	LaunchParamBufferSize    = 2
	// Options of loading a module.
	JITInfoLogBuffer       = 3
	JITInfoLogBufferBytes  = 4
	JITErrorLogBuffer      = 5
	JITErrorLogBufferBytes = 6
)

// The first arguments of streams: the two that a program has without making
// one.
const (
	LegacyStream    Stream = 1
	PerThreadStream Stream = 2
)

// FabricSince is the version of drivers that know fabric handles.
const FabricSince = 12030
