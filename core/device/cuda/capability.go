package cuda

import "github.com/moewire/moewire/core/internal/libcuda"

// Capability is a device's compute capability, by which its code is chosen
// (package images). It initialises the driver and needs no context.
func Capability(lib *libcuda.Library, ordinal int) (major, minor int, err error) {
	if err := lib.Init(); err != nil {
		return 0, 0, err
	}
	dev, err := lib.Device(ordinal)
	if err != nil {
		return 0, 0, err
	}
	if major, err = lib.DeviceAttribute(dev, libcuda.AttrComputeCapabilityMajor); err != nil {
		return 0, 0, err
	}
	minor, err = lib.DeviceAttribute(dev, libcuda.AttrComputeCapabilityMinor)
	return major, minor, err
}
