package cuda

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// Survey is what a driver offers on this machine.
type Survey struct {
	Driver  string     `json:"driver"`       // the library, as it was opened
	Version string     `json:"cuda_version"` // that the driver is made for
	Devices []Surveyed `json:"devices"`
}

// Surveyed is one device.
type Surveyed struct {
	Ordinal     int    `json:"ordinal"`
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	PCI         string `json:"pci"`
	Capability  string `json:"compute_capability"`
	MemoryBytes uint64 `json:"memory_bytes"`
	NumSMs      int    `json:"multiprocessors"`
	// Code is what the kernels run from, as a Describer says it; "": NoCode says why
	// there is none.
	Code   string `json:"code"`
	NoCode string `json:"no_code"`
	// Shares is how its memory gets into other processes: "descriptor", "fabric handle"
	// or "handle" (of CUDA IPC), and NoFabric why not by a fabric handle, too; "" if
	// nothing speaks against that.
	Shares   string `json:"shares_memory_by"`
	NoFabric string `json:"no_fabric"`
	// NoRDMA is why no NIC can be let into its memory; "" if nothing speaks against
	// it.
	NoRDMA string `json:"no_rdma"`
	// Peers are the other devices that it can map memory of.
	Peers []int `json:"peers"`
	// Atomics are those of them with which it has native atomics, both ways.
	Atomics []int `json:"atomics_with"`
}

// Describer says which code a device of a compute capability would get, without
// making it.
type Describer func(major, minor int) (string, error)

// NewSurvey asks the driver at path, or, if that is empty, the machine's. It
// makes no context. Without a driver the error says what was tried.
func NewSurvey(path string, code Describer) (Survey, error) {
	lib, err := libcuda.Load(path)
	if err != nil {
		return Survey{}, fmt.Errorf("%w: %w", ErrNoDevice, err)
	}
	s, err := surveyOf(lib, code)
	if err != nil {
		return s, fmt.Errorf("%w: %s: %w", ErrNoDevice, lib.Name(), err)
	}
	return s, nil
}

func surveyOf(lib *libcuda.Library, code Describer) (Survey, error) {
	s := Survey{Driver: lib.Name()}
	if err := lib.Init(); err != nil {
		return s, err
	}
	version, err := lib.DriverVersion()
	if err != nil {
		return s, err
	}
	s.Version = versionText(version)
	n, err := lib.DeviceCount()
	if err != nil {
		return s, err
	}
	s.Devices = make([]Surveyed, n)
	for i := range s.Devices {
		if err := s.Devices[i].ask(lib, i, n, code); err != nil {
			return s, fmt.Errorf("device %d: %w", i, err)
		}
	}
	return s, nil
}

func versionText(version int) string { return fmt.Sprintf("%d.%d", version/1000, version%1000/10) }

// ask fills in one of n devices, up to the first error.
func (s *Surveyed) ask(lib *libcuda.Library, ordinal, n int, code Describer) error {
	d, err := lib.Device(ordinal)
	if err != nil {
		return err
	}
	s.Ordinal = ordinal
	if s.Name, err = lib.DeviceName(d); err != nil {
		return err
	}
	id, err := lib.DeviceUUID(d)
	if err != nil {
		return err
	}
	s.UUID = fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	if s.PCI, err = lib.DevicePCIBusID(d); err != nil {
		return err
	}
	if s.MemoryBytes, err = lib.DeviceTotalBytes(d); err != nil {
		return err
	}
	if err := s.askAttributes(lib, d, code); err != nil {
		return err
	}
	return s.askPeers(lib, d, n)
}

func (s *Surveyed) askAttributes(lib *libcuda.Library, d libcuda.Device, code Describer) error {
	var v [5]int
	for i, a := range [...]int{
		libcuda.AttrComputeCapabilityMajor, libcuda.AttrComputeCapabilityMinor, libcuda.AttrMultiprocessorCount,
		libcuda.AttrVMMSupported, libcuda.AttrHandlePosixFDSupported,
	} {
		var err error
		if v[i], err = lib.DeviceAttribute(d, a); err != nil {
			return err
		}
	}
	s.Capability, s.NumSMs = fmt.Sprintf("%d.%d", v[0], v[1]), v[2]
	if err := s.askFabric(lib, d, v[3] != 0); err != nil {
		return err
	}
	switch {
	case v[3] != 0 && v[4] != 0:
		s.Shares = "descriptor"
	case s.NoFabric == "":
		s.Shares = "fabric handle"
	default:
		s.Shares = "handle"
	}
	text, err := code(v[0], v[1])
	if s.Code = text; err != nil {
		s.Code, s.NoCode = "", err.Error()
	}
	_, err = rdmaOf(lib, d, s.Shares == "descriptor")
	if errors.Is(err, ErrNoRDMA) {
		s.NoRDMA, err = err.Error(), nil
	}
	return err
}

// askFabric looks for what speaks against fabric handles. Only an allocation would
// tell that nothing does, and that takes a context.
func (s *Surveyed) askFabric(lib *libcuda.Library, d libcuda.Device, byHand bool) error {
	err := fabricOf(lib, d)
	if err == nil && !byHand {
		err = fmt.Errorf("%w: not of memory that is mapped by hand, which the device has not", ErrNoFabric)
	}
	if err == nil {
		err = channelOf()
	}
	if errors.Is(err, ErrNoFabric) {
		s.NoFabric, err = err.Error(), nil
	}
	return err
}

func (s *Surveyed) askPeers(lib *libcuda.Library, d libcuda.Device, n int) error {
	s.Peers, s.Atomics = []int{}, []int{}
	for i := range n {
		if i == s.Ordinal {
			continue
		}
		peer, err := lib.Device(i)
		if err != nil {
			return err
		}
		can, err := lib.CanAccessPeer(d, peer)
		if err != nil {
			return err
		}
		if can {
			s.Peers = append(s.Peers, i)
		}
		if can && hasAtomics(lib, d, peer) {
			s.Atomics = append(s.Atomics, i)
		}
	}
	return nil
}
