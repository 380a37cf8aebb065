package main

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/gpubench/probe"
	"github.com/moewire/moewire/core/device/cuda/images"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/libnvrtc"
)

// runProbes asks the device for what the engine takes for granted. An answer that it
// cannot do with is an error.
func runProbes(o *options) (res *probe.Result, err error) {
	lib, err := libcuda.Load(o.driver)
	if err != nil {
		return nil, err
	}
	if err := lib.Init(); err != nil {
		return nil, err
	}
	code, name, err := o.onlyCompiled(lib, probe.Compile)
	if err != nil {
		return nil, err
	}
	leave, err := enter(lib, o.ordinal)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	size := probe.Usual
	if o.emulated {
		size = probe.Few
	}
	if res, err = probe.Run(lib, code, size); err != nil {
		return nil, err
	}
	res.Emulated, res.Code = o.emulated, name
	return res, res.Check()
}

// enter makes the device's primary context current, until leave.
func enter(lib *libcuda.Library, ordinal int) (leave func() error, err error) {
	dev, err := lib.Device(ordinal)
	if err != nil {
		return nil, err
	}
	ctx, err := lib.RetainPrimary(dev)
	if err != nil {
		return nil, err
	}
	if err := lib.PushContext(ctx); err != nil {
		return nil, errors.Join(err, lib.ReleasePrimary(dev))
	}
	return func() error { return errors.Join(lib.PopContext(), lib.ReleasePrimary(dev)) }, nil
}

type compileFunc func(lib *libnvrtc.Library, target string) ([]byte, error)

// onlyCompiled is code of kernels that no build has, and what it is.
func (o *options) onlyCompiled(lib *libcuda.Library, compile compileFunc) ([]byte, string, error) {
	if o.emulated {
		return []byte("kernels\x00"), "emulated", nil
	}
	major, minor, err := cuda.Capability(lib, o.ordinal)
	if err != nil {
		return nil, "", err
	}
	nvrtc, err := images.OpenNVRTC(images.Options{})
	if err != nil {
		return nil, "", err
	}
	code, err := compile(nvrtc, fmt.Sprintf("sm_%d%d", major, minor))
	return code, fmt.Sprintf("cubin sm_%d%d, compiled by %s", major, minor, nvrtc.Name()), err
}
