package cuda

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/sys"
)

// ErrNoFabric means that memory has no fabric handle.
var ErrNoFabric = errors.New("no fabric handle")

// ways are how other processes may map a Memory.
type ways struct {
	types    int32                // of handles that it can be exported by; 0: IPC handles only
	fabric   libcuda.FabricHandle // if types has it
	noFabric error                // why it has not, though the device says that it could
}

// ByDescriptor reports whether Export works. If neither that nor Fabric does,
// IPCHandle works.
func (m *Memory) ByDescriptor() bool { return m.types&libcuda.HandlePosixFD != 0 }

// Fabric names the memory to other processes, if it was made for that. A process that
// knows the handle, and has an IMEX channel of the process that made it, may map the
// memory as long as it is there, and keeps it then; the handle itself keeps nothing.
func (m *Memory) Fabric() (h libcuda.FabricHandle, ok bool) {
	return m.fabric, m.types&libcuda.HandleFabric != 0
}

// NoFabric is why AllocShared gave memory without a fabric handle on a device that
// has such handles, as it says. It wraps ErrNoFabric.
func (m *Memory) NoFabric() error { return m.noFabric }

// ShareByIPC makes what the device allocates from then on memory that other
// processes map by IPC handles, as if there were no other way. Call it first.
func (d *Device) ShareByIPC() { d.without = libcuda.HandlePosixFD | libcuda.HandleFabric }

// ShareByFabric leaves descriptors out alone.
func (d *Device) ShareByFabric() { d.without = libcuda.HandlePosixFD }

// mapsByHand reports whether memory that is not shared is mapped by hand.
func (d *Device) mapsByHand() (bool, error) {
	types, err := d.handleTypes(false)
	return types != 0, err
}

// handleTypes are those that memory on the device is made for.
func (d *Device) handleTypes(shared bool) (types int32, err error) {
	vmm, err := d.lib.DeviceAttribute(d.dev, libcuda.AttrVMMSupported)
	if err != nil || vmm == 0 {
		return 0, err
	}
	fd, err := d.lib.DeviceAttribute(d.dev, libcuda.AttrHandlePosixFDSupported)
	if err != nil {
		return 0, err
	}
	if fd != 0 {
		types = libcuda.HandlePosixFD
	}
	if shared {
		switch err = fabricOf(d.lib, d.dev); {
		case err == nil:
			types |= libcuda.HandleFabric
		case errors.Is(err, ErrNoFabric):
			err = nil
		}
	}
	return types &^ d.without, err
}

// fabricOf says why a device has no fabric handles, wrapping ErrNoFabric. That it
// has does not mean that this process may use them.
func fabricOf(lib *libcuda.Library, dev libcuda.Device) error {
	version, err := lib.DriverVersion()
	if err != nil {
		return err
	}
	if version < libcuda.FabricSince { // it would not know the attribute
		return fmt.Errorf("%w: the driver is of CUDA %s, and they came with %s", ErrNoFabric, versionText(version), versionText(libcuda.FabricSince))
	}
	has, err := lib.DeviceAttribute(dev, libcuda.AttrHandleFabricSupported)
	if err == nil && has == 0 {
		return fmt.Errorf("%w: the device has none", ErrNoFabric)
	}
	return err
}

// channels is where the driver looks for what lets a process use fabric handles.
var channels = "/dev/nvidia-caps-imex-channels"

// channelOf says why this process may use no IMEX channel, wrapping ErrNoFabric.
func channelOf() error {
	files, err := filepath.Glob(filepath.Join(channels, "channel*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if sys.MayRead(file) {
			return nil
		}
	}
	return fmt.Errorf("%w: no IMEX channel in %s that this process may open", ErrNoFabric, channels)
}

// createForFabric creates memory that has a fabric handle, too, and reports whether
// the driver lets it. Else nothing is left, and noFabric says why: also a driver that
// has such handles refuses them to a process without an IMEX channel, and says so when
// it is asked for one.
func (m *Memory) createForFabric(types int32) bool {
	asked := m.numBytes
	err := m.create(types)
	if err == nil {
		if m.fabric, err = m.d.lib.ExportFabric(m.allocated); err == nil {
			return true
		}
		err = errors.Join(err, m.d.lib.MemRelease(m.allocated))
		m.allocated, m.numBytes, m.types = 0, asked, 0
	}
	m.noFabric = fmt.Errorf("%w: %w", ErrNoFabric, err)
	return false
}
