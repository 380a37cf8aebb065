//go:build !cgo

package cpu

import (
	"runtime"

	"github.com/moewire/moewire/core/device"
)

func hasNative(int) bool { return false }

const canStream = false

func newNative(Options) device.Kernels { return nil }

// Features lists the CPU features that decide which kernels run.
func Features() string { return runtime.GOARCH + ", built without cgo: plain Go kernels" }
