package cuda

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/internal/libcuda"
)

var (
	// ErrNoDevice means that there is no driver, or no device that will do.
	ErrNoDevice = errors.New("no CUDA device")
	// ErrNoMemory is what a device without enough memory says.
	ErrNoMemory error = libcuda.ErrOutOfMemory
)

// IsFailure reports whether a call of the driver has failed.
func IsFailure(err error) bool {
	failed := (*libcuda.Error)(nil)
	return errors.As(err, &failed)
}

// Code gives the kernels' code for a compute capability, and says where it
// comes from.
type Code func(major, minor int) (code []byte, from string, err error)

// OpenAt opens the driver at path (empty: the machine's) and a device of it,
// with the code that fits it. ErrNoDevice says what was tried.
func OpenAt(path string, ordinal int, code Code) (d *Device, from string, err error) {
	lib, err := libcuda.Load(path)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	if err := lib.Init(); err != nil {
		return nil, "", fmt.Errorf("%w: %s: %w", ErrNoDevice, lib.Name(), err)
	}
	major, minor, err := capability(lib, ordinal)
	if err != nil {
		return nil, "", err
	}
	image, from, err := code(major, minor)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	d, err = Open(lib, ordinal, image)
	return d, from, err
}

func capability(lib *libcuda.Library, ordinal int) (major, minor int, err error) {
	n, err := lib.DeviceCount()
	if err == nil && ordinal >= n {
		err = fmt.Errorf("device %d of %d", ordinal, n)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %s: %w", ErrNoDevice, lib.Name(), err)
	}
	d, err := lib.Device(ordinal)
	if err != nil {
		return 0, 0, err
	}
	if major, err = lib.DeviceAttribute(d, libcuda.AttrComputeCapabilityMajor); err != nil {
		return 0, 0, err
	}
	minor, err = lib.DeviceAttribute(d, libcuda.AttrComputeCapabilityMinor)
	return major, minor, err
}
