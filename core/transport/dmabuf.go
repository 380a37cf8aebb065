package transport

// Dmabuf is a device's memory (a GPU's) as its driver exports it.
type Dmabuf struct {
	// FD is the file descriptor of the dma-buf. It stays the caller's, which may close it
	// once the memory is registered.
	FD int
	// Off is where in the dma-buf the memory begins.
	Off uint64
	// SizeBytes is its length.
	SizeBytes int64
	// Addr is the address at which requests name it, usually the one that the
	// device's own programs use. Addr and Off are equal modulo the page size.
	Addr uint64
}

// DmabufCarrier is a Transport that can move bytes out of and into a device's
// memory. Bytes of such a region is nil, and it cannot be sent inline.
type DmabufCarrier interface {
	Transport
	// CanDmabuf says why RegisterDmabuf cannot work, wrapping ErrNotSupported;
	// nil if nothing speaks against it.
	CanDmabuf() error
	// RegisterDmabuf is Register for a device's memory. The owner keeps the
	// memory alive until the region is closed. ErrNotSupported where the
	// library, the driver or the exporter cannot.
	RegisterDmabuf(memory Dmabuf, access Access) (Region, error)
}
