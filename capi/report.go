package main

// #include "internal.h"
import "C"

import (
	"runtime"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/transport/verbs"
)

// part says whether a transport or device can be used, and if not, why.
type part struct {
	Available bool   `json:"available"`
	Reason    string `json:"reason,omitempty"`
	// NoDeviceMemory is why it cannot move data out of and into a GPU's memory. Only
	// carriers between hosts have it.
	NoDeviceMemory string `json:"no_device_memory,omitempty"`
}

// systemReport is what `moewire doctor` shows of the library's side.
type systemReport struct {
	Version      string          `json:"version"`
	GoVersion    string          `json:"go_version"`
	ABIVersion   int             `json:"abi_version"`
	VectorWidths []int           `json:"vector_widths"`
	VectorWidth  int             `json:"vector_width"`
	Kernels      string          `json:"kernels"`
	CPUFeatures  string          `json:"cpu_features"`
	Transports   map[string]part `json:"transports"`
	Devices      map[string]part `json:"devices"`
}

func describeSystem() (systemReport, error) {
	kern, err := cpu.New(0)
	if err != nil {
		return systemReport{}, err
	}
	asked := part{Reason: "for buffers that ask for CUDA; has run on one model of GPU alone"}
	r := systemReport{
		Version: version, GoVersion: runtime.Version(), ABIVersion: C.MW_ABI_VERSION,
		VectorWidths: cpu.Widths(), Kernels: kern.Name(), CPUFeatures: cpu.Features(),
		Transports: map[string]part{"shm": {Available: true}, "cudaipc": asked, "verbs": verbsPart(), "tcp": tcpPart()},
		Devices:    map[string]part{"cpu": {Available: true}, "cuda": asked},
	}
	for _, w := range r.VectorWidths {
		r.VectorWidth = max(r.VectorWidth, w)
	}
	return r, nil
}

// verbsPart opens the device that a buffer would take, and reports the result.
func verbsPart() part {
	t, err := verbs.NewGroup(verbs.Config{})
	if err != nil {
		return part{Reason: err.Error()}
	}
	p := part{Available: true, Reason: t.Device()}
	if err := t.CanDmabuf(); err != nil {
		p.NoDeviceMemory = err.Error()
	}
	if err := t.Close(); err != nil {
		return part{Reason: p.Reason + ": " + err.Error()}
	}
	return p
}

func tcpPart() part {
	return part{Available: true, NoDeviceMemory: "tcp registers no device memory"}
}

//export mwiSystemReport
func mwiSystemReport(buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		r, err := describeSystem()
		if err != nil {
			return err
		}
		return copyJSON(r, buf, size, length)
	})
}
