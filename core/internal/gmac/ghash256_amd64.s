#include "textflag.h"

// The shuffle that turns a block's bytes around, twice.
DATA reverse2<>+0(SB)/8, $0x08090a0b0c0d0e0f
DATA reverse2<>+8(SB)/8, $0x0001020304050607
DATA reverse2<>+16(SB)/8, $0x08090a0b0c0d0e0f
DATA reverse2<>+24(SB)/8, $0x0001020304050607
GLOBL reverse2<>(SB), RODATA|NOPTR, $32

// What a product is reduced by, reflected, without its lowest coefficient.
DATA poly2<>+0(SB)/8, $0xc200000000000000
DATA poly2<>+8(SB)/8, $0
GLOBL poly2<>(SB), RODATA|NOPTR, $16

// PRODUCTS multiplies the two blocks in Y1 by two powers: the low and high parts go
// to Y4 and Y5, both middle parts together with those two to Y6. Three
// multiplications in place of four (Karatsuba): they are what it waits for.
#define PRODUCTS(at) \
	VPSHUFD    $0x4e, Y1, Y2 \
	VPXOR      Y1, Y2, Y2    \
	VPCLMULQDQ $0x00, at(SI), Y1, Y4 \
	VPCLMULQDQ $0x11, at(SI), Y1, Y5 \
	VPCLMULQDQ $0x00, 512+at(SI), Y2, Y6

// MORE takes two blocks, and adds their products to Y10, Y11 and Y12.
#define MORE(at) \
	VMOVDQU at(DX), Y1   \
	VPSHUFB Y15, Y1, Y1  \
	PRODUCTS(at)         \
	VPXOR   Y4, Y10, Y10 \
	VPXOR   Y5, Y11, Y11 \
	VPXOR   Y6, Y12, Y12

// MORETO is MORE, which also stores the blocks as they were loaded, R8 bytes behind where they lie.
#define MORETO(at) \
	VMOVDQU at(DX), Y1   \
	VMOVDQU Y1, at(DX)(R8*1) \
	VPSHUFB Y15, Y1, Y1  \
	PRODUCTS(at)         \
	VPXOR   Y4, Y10, Y10 \
	VPXOR   Y5, Y11, Y11 \
	VPXOR   Y6, Y12, Y12

// ADD adds the two lanes of a register to its first one.
#define ADD(y, x) \
	VEXTRACTI128 $1, y, X4 \
	VPXOR        X4, x, x

// FOLD is half of a reduction of X10.
#define FOLD \
	VPCLMULQDQ $0x00, X14, X10, X4 \
	VPSHUFD    $0x4e, X10, X10     \
	VPXOR      X4, X10, X10

// REDUCE brings the low, high and middle parts in X10, X11 and X12 to X0, and
// clears the rest of Y0.
#define REDUCE \
	VPSLLDQ $8, X12, X4   \
	VPSRLDQ $8, X12, X12  \
	VPXOR   X4, X10, X10  \
	VPXOR   X12, X11, X11 \
	FOLD                  \
	FOLD                  \
	VPXOR   X11, X10, X0

// func ghash256(sum *[16]byte, k *keys, p *byte, n int)
TEXT ·ghash256(SB), NOSPLIT, $0-32
	MOVQ    sum+0(FP), DI
	MOVQ    k+8(FP), SI
	MOVQ    p+16(FP), DX
	MOVQ    n+24(FP), CX
	VMOVDQU (DI), X0
	VMOVDQU reverse2<>(SB), Y15
	VMOVDQU poly2<>(SB), X14

wide:
	CMPQ    CX, $512
	JLT     narrow
	VMOVDQU (DX), Y1
	VPSHUFB Y15, Y1, Y1
	VPXOR   Y0, Y1, Y1
	PRODUCTS(0)
	VMOVDQA Y4, Y10
	VMOVDQA Y5, Y11
	VMOVDQA Y6, Y12
	MORE(32)
	MORE(64)
	MORE(96)
	MORE(128)
	MORE(160)
	MORE(192)
	MORE(224)
	MORE(256)
	MORE(288)
	MORE(320)
	MORE(352)
	MORE(384)
	MORE(416)
	MORE(448)
	MORE(480)
	VPXOR   Y10, Y12, Y12
	VPXOR   Y11, Y12, Y12
	ADD(Y10, X10)
	ADD(Y11, X11)
	ADD(Y12, X12)
	REDUCE
	ADDQ    $512, DX
	SUBQ    $512, CX
	JMP     wide

narrow:
	VMOVDQU 496(SI), X3

block:
	CMPQ       CX, $16
	JLT        end
	VMOVDQU    (DX), X1
	VPSHUFB    X15, X1, X1
	VPXOR      X0, X1, X1
	VPCLMULQDQ $0x00, X3, X1, X10
	VPCLMULQDQ $0x11, X3, X1, X11
	VPCLMULQDQ $0x01, X3, X1, X12
	VPCLMULQDQ $0x10, X3, X1, X5
	VPXOR      X5, X12, X12
	REDUCE
	ADDQ       $16, DX
	SUBQ       $16, CX
	JMP        block

end:
	VMOVDQU X0, (DI)
	VZEROUPPER
	RET

// func ghashCopy256(sum *[16]byte, k *keys, to, p *byte, n int)
TEXT ·ghashCopy256(SB), NOSPLIT, $0-40
	MOVQ    sum+0(FP), DI
	MOVQ    k+8(FP), SI
	MOVQ    to+16(FP), R8
	MOVQ    p+24(FP), DX
	MOVQ    n+32(FP), CX
	SUBQ    DX, R8
	VMOVDQU (DI), X0
	VMOVDQU reverse2<>(SB), Y15
	VMOVDQU poly2<>(SB), X14

copy:
	VMOVDQU (DX), Y1
	VMOVDQU Y1, (DX)(R8*1)
	VPSHUFB Y15, Y1, Y1
	VPXOR   Y0, Y1, Y1
	PRODUCTS(0)
	VMOVDQA Y4, Y10
	VMOVDQA Y5, Y11
	VMOVDQA Y6, Y12
	MORETO(32)
	MORETO(64)
	MORETO(96)
	MORETO(128)
	MORETO(160)
	MORETO(192)
	MORETO(224)
	MORETO(256)
	MORETO(288)
	MORETO(320)
	MORETO(352)
	MORETO(384)
	MORETO(416)
	MORETO(448)
	MORETO(480)
	VPXOR   Y10, Y12, Y12
	VPXOR   Y11, Y12, Y12
	ADD(Y10, X10)
	ADD(Y11, X11)
	ADD(Y12, X12)
	REDUCE
	ADDQ    $512, DX
	SUBQ    $512, CX
	JNE     copy
	VMOVDQU X0, (DI)
	VZEROUPPER
	RET
