//go:build cgo

package cpu

import (
	"fmt"

	"github.com/moewire/moewire/core/device"
)

// shareAll makes the kernels' threads share every batch, and names the options.
func shareAll(k device.Kernels, o Options) {
	n := k.(*native)
	n.least = 1
	n.name += fmt.Sprintf(" stores=%d prefetch=%d threads=%d", o.Stores, o.Prefetch, o.Threads)
}
