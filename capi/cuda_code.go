package main

import (
	"strings"

	"github.com/moewire/moewire/core/device/cuda/images"
)

// codeFor returns the kernels' code for a compute capability, and where it
// comes from.
func (g *onGPU) codeFor(major, minor int) (code []byte, from string, err error) {
	if len(g.given) > 0 {
		return g.given, "code that was given", nil
	}
	places := strings.FieldsFunc(g.nvrtc, func(r rune) bool { return r == ':' })
	return images.For(major, minor, images.Options{NVRTC: places})
}
