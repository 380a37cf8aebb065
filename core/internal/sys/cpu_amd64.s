#include "textflag.h"

// func cpuidLeaf7() (ebx, ecx uint32)
TEXT ·cpuidLeaf7(SB), NOSPLIT, $0-8
	MOVL $7, AX
	MOVL $0, CX
	CPUID
	MOVL BX, ebx+0(FP)
	MOVL CX, ecx+4(FP)
	RET
