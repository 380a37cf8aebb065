package domain

import (
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// DmabufSegment is a Segment that may be a device's memory: then there is nothing
// in it for the processor.
type DmabufSegment interface {
	Segment
	// Dmabuf says how it is registered; false: by its bytes.
	Dmabuf() (transport.Dmabuf, bool)
}

// RegisterSegment registers the first n bytes of a segment, whatever it is.
func RegisterSegment(carrier transport.Transport, s Segment, n int64, access transport.Access) (transport.Region, error) {
	d, ok := s.(DmabufSegment)
	if !ok {
		return carrier.Register(s.Bytes(0, n), access)
	}
	memory, ok := d.Dmabuf()
	if !ok {
		return carrier.Register(s.Bytes(0, n), access)
	}
	to, ok := carrier.(transport.DmabufCarrier)
	if !ok {
		return nil, fmt.Errorf("a device's memory over %s: %w", carrier.Name(), transport.ErrNotSupported)
	}
	memory.SizeBytes = n
	return to.RegisterDmabuf(memory, access)
}
