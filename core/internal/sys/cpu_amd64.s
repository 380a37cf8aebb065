#include "textflag.h"

// func cpuidLeaf7() (ebx, ecx uint32)
TEXT ·cpuidLeaf7(SB), NOSPLIT, $0-8
	MOVL $0, AX
	MOVL $0, CX
	CPUID
	MOVL $0, BX
	MOVL $0, CX
	CMPL AX, $7
	JCS  none // firmware or a virtual machine may hide it
	MOVL $7, AX
	CPUID

none:
	MOVL BX, ebx+0(FP)
	MOVL CX, ecx+4(FP)
	RET
