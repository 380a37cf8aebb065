package sys

import "golang.org/x/sys/cpu"

// CarrylessMultiplyBytes is how wide the registers are on which the processor,
// and the system, have VPCLMULQDQ: 64 (with AVX-512 F, BW and VL), 32 (with AVX2),
// or 0.
func CarrylessMultiplyBytes() int {
	x := &cpu.X86
	switch {
	case x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512VPCLMULQDQ:
		return 64
	case x.HasAVX2 && hasVPCLMULQDQ():
		return 32
	}
	return 0
}

// hasVPCLMULQDQ reads the bit itself: x/sys/cpu looks at it only where there is
// AVX-512.
func hasVPCLMULQDQ() bool {
	_, ecx := cpuidLeaf7()
	return ecx>>10&1 != 0
}

// HasSHA256 reports whether the processor has instructions for SHA-256, which x/sys/cpu does not look at, and for bytes
// in any order.
func HasSHA256() bool {
	if !cpu.X86.HasSSSE3 || !cpu.X86.HasSSE41 {
		return false
	}
	ebx, _ := cpuidLeaf7()
	return ebx>>29&1 != 0
}

// cpuidLeaf7 is EBX and ECX of CPUID's leaf 7, subleaf 0; zeros where the processor does not show that leaf.
func cpuidLeaf7() (ebx, ecx uint32)
