package sys

import "golang.org/x/sys/cpu"

// HasWideCarrylessMultiply reports whether the processor, and the system, have
// VPCLMULQDQ on registers of 64 bytes, and what goes with it (AVX-512 F, BW, VL).
func HasWideCarrylessMultiply() bool {
	x := &cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512VPCLMULQDQ
}
