package main

import "fmt"

// codeFor returns the kernels' code for a compute capability, and where it
// comes from.
func (g *onGPU) codeFor(major, minor int) (code []byte, from string, err error) {
	if len(g.given) > 0 {
		return g.given, "code that was given", nil
	}
	return nil, "", fmt.Errorf("no code for sm_%d%d", major, minor)
}
