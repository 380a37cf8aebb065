package cuda

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// kernelNames are the entry points, in the order of the kernel constants.
var kernelNames = [numKernels]string{
	kernelNumber: "moewire_rows_number",
	kernelPlan:   "moewire_rows_plan", kernelPlace: "moewire_dispatch_place",
	kernelReceive: "moewire_rows_receive", kernelRelease: "moewire_rows_release",
	kernelPublish: "moewire_outputs_publish", kernelAgain: "moewire_outputs_again",
	kernelWait: "moewire_outputs_wait", kernelReduce: "moewire_combine_reduce",
	kernelReduceFP32: "moewire_combine_reduce_fp32", kernelReduceRuns: "moewire_combine_reduce_runs",
	kernelReduceRunsFP32: "moewire_combine_reduce_runs_fp32",
	kernelPlaceNarrow:    "moewire_dispatch_place_narrow", kernelPlaceDeep: "moewire_dispatch_place_deep",
	kernelReduceNarrow: "moewire_combine_reduce_narrow", kernelReduceDeep: "moewire_combine_reduce_deep",
	kernelRemoteOrder: "moewire_rows_remote_order",
	kernelRemoteSend:  "moewire_rows_remote_send", kernelRemoteTake: "moewire_rows_remote_take",
	kernelRemoteOutputs: "moewire_outputs_remote_send", kernelRemoteWait: "moewire_outputs_remote_take",
	kernelMove: "moewire_rows_move", kernelSum: "moewire_rows_sum",
	kernelSumFP32: "moewire_rows_sum_fp32", kernelSumFP32Out: "moewire_rows_sum_fp32_out",
}

const (
	kernelNumber = iota
	kernelPlan
	kernelPlace
	kernelReceive
	kernelRelease
	kernelPublish
	kernelAgain
	kernelWait
	kernelReduce
	kernelReduceFP32
	kernelReduceRuns
	kernelReduceRunsFP32
	kernelPlaceNarrow
	kernelPlaceDeep
	kernelReduceNarrow
	kernelReduceDeep
	kernelRemoteOrder
	kernelRemoteSend
	kernelRemoteTake
	kernelRemoteOutputs
	kernelRemoteWait
	kernelMove
	kernelSum
	kernelSumFP32
	kernelSumFP32Out
	numKernels
)

// Device is one GPU, in its primary context: the one that the CUDA runtime and
// torch use. Close it when nothing of it is in use. Safe for concurrent use.
type Device struct {
	lib     *libcuda.Library
	dev     libcuda.Device
	ctx     libcuda.Context
	modules []libcuda.Module
	kernels [numKernels]libcuda.Function
	// own is for copies that have nothing to do with a caller's streams: it waits
	// for none of them, as the legacy stream would.
	own libcuda.Stream
	// NumSMs is how many blocks of one per multiprocessor run at a time.
	NumSMs  int
	closed  bool
	without int32 // types of handles that memory is not made for: see ShareByIPC
}

// Open opens a device by its ordinal and loads the images: cubins, or PTX with
// a terminating zero, that hold the kernels together.
func Open(lib *libcuda.Library, ordinal int, images ...[]byte) (*Device, error) {
	if err := lib.Init(); err != nil {
		return nil, err
	}
	dev, err := lib.Device(ordinal)
	if err != nil {
		return nil, fmt.Errorf("device %d: %w", ordinal, err)
	}
	d := &Device{lib: lib, dev: dev}
	if d.NumSMs, err = lib.DeviceAttribute(dev, libcuda.AttrMultiprocessorCount); err != nil {
		return nil, err
	}
	if d.ctx, err = lib.RetainPrimary(dev); err != nil {
		return nil, err
	}
	if err := d.do(func() error { return d.begin(images) }); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Device) begin(images [][]byte) (err error) {
	if d.own, err = d.lib.StreamCreate(0); err != nil {
		return err
	}
	return d.load(images)
}

// do calls f, which is this package's, with the device's context current. What
// it does concerns no stream of the caller's: allocations, and copies on the
// stream that is the device's own. So it is allowed also while another thread
// captures a stream in the global mode.
func (d *Device) do(f func() error) error {
	return d.in(func() error {
		before, err := d.lib.ExchangeCaptureMode(libcuda.CaptureModeRelaxed)
		if err != nil {
			return err
		}
		err = f()
		_, after := d.lib.ExchangeCaptureMode(before)
		return errors.Join(err, after)
	})
}

// in calls f with the device's context current.
func (d *Device) in(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.lib.PushContext(d.ctx); err != nil {
		return err
	}
	return errors.Join(f(), d.lib.PopContext())
}

// load finds every kernel in one of the images.
func (d *Device) load(images [][]byte) error {
	for _, image := range images {
		m, err := d.lib.ModuleLoad(image)
		if err != nil {
			return err
		}
		d.modules = append(d.modules, m)
	}
	for i, name := range kernelNames {
		err := fmt.Errorf("kernel %s: no image", name)
		for _, m := range d.modules {
			if d.kernels[i], err = d.lib.ModuleFunction(m, name); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Close unloads the kernels and releases the context. Idempotent; after an
// error it may be called again.
func (d *Device) Close() error {
	if d.closed {
		return nil
	}
	begun := false
	err := d.do(func() error {
		begun = true
		var all []error
		for _, m := range d.modules {
			all = append(all, d.lib.ModuleUnload(m))
		}
		d.modules = nil
		if d.own != 0 {
			all = append(all, d.lib.StreamDestroy(d.own))
			d.own = 0
		}
		return errors.Join(all...)
	})
	if err != nil && !begun && (len(d.modules) > 0 || d.own != 0) {
		return err // they live in the context
	}
	d.closed = true
	return errors.Join(err, d.lib.ReleasePrimary(d.dev))
}
