#include "textflag.h"

// func cpuidLeaf7() uint32
TEXT ·cpuidLeaf7(SB), NOSPLIT, $0-4
	MOVL $7, AX
	MOVL $0, CX
	CPUID
	MOVL CX, ret+0(FP)
	RET
