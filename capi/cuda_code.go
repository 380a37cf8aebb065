package main

// #include "internal.h"
import "C"

import (
	"strings"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/images"
)

// codeFor returns the kernels' code for a compute capability, and where it
// comes from.
func (g *onGPU) codeFor(major, minor int) (code []byte, from string, err error) {
	if len(g.given) > 0 {
		return g.given, "code that was given", nil
	}
	return images.For(major, minor, optionsOf(g.nvrtc))
}

// optionsOf reads the places of a compiler, separated by colons.
func optionsOf(nvrtc string) images.Options {
	return images.Options{NVRTC: strings.FieldsFunc(nvrtc, func(r rune) bool { return r == ':' })}
}

// cudaReport is what a driver offers, and what else buffers would find: code and a
// compiler.
type cudaReport struct {
	cuda.Survey
	// NVRTC is the compiler that a device without prebuilt code needs; "": NoNVRTC
	// says why there is none.
	NVRTC   string `json:"nvrtc"`
	NoNVRTC string `json:"no_nvrtc"`
}

func newCUDAReport(driver string, o images.Options) (r cudaReport, err error) {
	r.Survey, err = cuda.NewSurvey(driver, func(major, minor int) (string, error) { return images.Describe(major, minor, o) })
	if err != nil {
		return r, err
	}
	nvrtc, err := images.Compiler(o)
	if r.NVRTC = nvrtc; err != nil {
		r.NoNVRTC = err.Error()
	}
	return r, nil
}

//export mwiCUDAReport
func mwiCUDAReport(driver, nvrtc *C.mw_bytes_t, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		path, err := textOf("driver", driver)
		if err != nil {
			return err
		}
		places, err := textOf("nvrtc", nvrtc)
		if err != nil {
			return err
		}
		found, err := newCUDAReport(path, optionsOf(places))
		if err != nil {
			return err
		}
		return copyJSON(found, buf, size, length)
	})
}
