package main

// #include "internal.h"
import "C"

import (
	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/images"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/node"
)

// deviceTensors lie in the memory of a device: addresses stay addresses, and this code
// does not read the memory there.
type deviceTensors struct{}

func (deviceTensors) dispatch(d *dispatch, a *C.mw_dispatch_args_t, ranks int) error {
	if err := refuseOnGPU(uint32(a.flags)); err != nil {
		return err
	}
	active, err := deviceMask(uint64(a.active_ranks), int64(a.num_active_ranks), ranks)
	if err != nil {
		return err
	}
	d.device = ep.DeviceDispatch{
		X: uint64(a.x), TopkIdx: uint64(a.topk_idx), TopkWeights: uint64(a.topk_weights),
		ActiveRanks: active, RecvCount: uint64(a.recv_count), LayoutRange: uint64(a.layout_range),
		PeersHaveMore: uint64(a.peers_have_more), WaitNs: uint64(a.wait_ns), Stream: uint64(a.stream),
	}
	for i, at := range a.extra {
		d.device.Extra[i] = uint64(at)
	}
	d.args.Device = &d.device
	return nil
}

// deviceMask checks active_ranks, of which a kernel reads R entries.
func deviceMask(at uint64, n int64, ranks int) (uint64, error) {
	if at != 0 && n < int64(ranks) {
		return 0, invalid("active_ranks has %d entries, allowed %d and more", n, ranks)
	}
	return at, nil
}

func (deviceTensors) combine(c *combine, a *C.mw_combine_args_t, b *buffer, _ node.Handle) error {
	if err := refuseOnGPU(uint32(a.flags)); err != nil {
		return err
	}
	active, err := deviceMask(uint64(a.active_ranks), int64(a.num_active_ranks), b.NumRanks())
	if err != nil {
		return err
	}
	c.device = ep.DeviceCombine{
		X: uint64(a.x), TopkIdx: uint64(a.topk_idx), TopkWeights: uint64(a.topk_weights), Out: uint64(a.out),
		ActiveRanks: active, WaitNs: uint64(a.wait_ns), Stream: uint64(a.stream),
	}
	c.args.Device = &c.device
	if a.x == 0 { // flat combines need x, too: only the device knows whether there are rows
		return invalid("x is NULL, allowed expert outputs, or the handle's combine buffer")
	}
	return nil
}

func (deviceTensors) result(d *dispatch) {
	r, out := &d.res.Device, &d.out
	out.recv_x, out.recv_scales, out.src_info = C.uint64_t(r.RecvX), C.uint64_t(r.Scales), C.uint64_t(r.SrcInfo)
	out.combine_x = C.uint64_t(r.CombineX)
	out.recv_topk_idx = C.uint64_t(r.Columns[layout.ColumnTopkIdx])
	out.recv_topk_weights = C.uint64_t(r.Columns[layout.ColumnTopkWeights])
	for i := range out.recv_extra {
		out.recv_extra[i] = C.uint64_t(r.Columns[layout.ColumnExtra+i])
	}
}

func (deviceTensors) stream(given C.uint64_t) (uint64, error) { return uint64(given), nil }

func (deviceTensors) scatter(args *routing.ScatterArgs, a *C.mw_scatter_args_t, _ *routed) error {
	args.Device = &routing.DeviceScatter{
		X: uint64(a.x), Out: uint64(a.out), Weights: uint64(a.topk_weights), OutWeights: uint64(a.out_weights),
		Extra: uint64(a.extra), OutExtra: uint64(a.out_extra), Stream: uint64(a.stream),
	}
	return nil
}

func (deviceTensors) gather(args *routing.GatherArgs, a *C.mw_gather_args_t, _ *routed) error {
	args.Device = &routing.DeviceGather{
		X: uint64(a.x), Out: uint64(a.out), Weights: uint64(a.topk_weights), OutWeights: uint64(a.out_weights), Stream: uint64(a.stream),
	}
	for i, address := range a.bias {
		args.Device.Bias[i] = uint64(address)
	}
	return nil
}

func (deviceTensors) streams() error { return nil }

// cudaReport is what buffers would find: a driver with its devices, prebuilt code, a
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
		found, err := newCUDAReport(path, images.Options{NVRTC: placesOf(places)})
		if err != nil {
			return err
		}
		return copyJSON(found, buf, size, length)
	})
}
