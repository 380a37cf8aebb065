package cuda

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// Links says between which devices kernels can use atomic operations on one
// another's memory. Over plain PCIe there are none: what looks like an addition
// there is a load and a store, and others' additions in between are lost.
type Links struct {
	// Device is this one's number, the same in all processes: of its UUID. It is
	// never 0.
	Device uint64
	// Native are the numbers of those devices that this process sees and that have
	// native atomics with this one, both ways. Nothing is known of devices that it does
	// not see (CUDA_VISIBLE_DEVICES).
	Native []uint64
}

// Links asks the driver. A pair that it gives no answer for is not known to have
// any.
func (d *Device) Links() (Links, error) {
	id, err := d.UUID()
	if err != nil {
		return Links{}, err
	}
	n, err := d.lib.DeviceCount()
	if err != nil {
		return Links{}, err
	}
	l := Links{Device: DeviceNumber(id)}
	for ordinal := range n {
		other, err := d.lib.Device(ordinal)
		if err != nil {
			return Links{}, err
		}
		if other == d.dev || !hasAtomics(d.lib, d.dev, other) {
			continue
		}
		id, err := d.lib.DeviceUUID(other)
		if err != nil {
			return Links{}, err
		}
		l.Native = append(l.Native, DeviceNumber(id))
	}
	return l, nil
}

// hasAtomics is whether two devices have native atomics both ways, as far as the
// driver says.
func hasAtomics(lib *libcuda.Library, a, b libcuda.Device) bool {
	there, err := lib.P2PAttribute(a, b, libcuda.P2PNativeAtomics)
	if err != nil || there == 0 {
		return false
	}
	back, err := lib.P2PAttribute(b, a, libcuda.P2PNativeAtomics)
	return err == nil && back != 0
}

// DeviceNumber is that of a device in Links.
func DeviceNumber(id libcuda.UUID) uint64 {
	sum := sha256.Sum256(id[:])
	return binary.LittleEndian.Uint64(sum[:]) | 1
}
