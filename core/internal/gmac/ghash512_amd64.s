#include "textflag.h"

// The shuffle that turns a block's bytes around.
DATA reverse<>+0(SB)/8, $0x08090a0b0c0d0e0f
DATA reverse<>+8(SB)/8, $0x0001020304050607
GLOBL reverse<>(SB), RODATA|NOPTR, $16

// What a product is reduced by, reflected, without its lowest coefficient.
DATA poly<>+0(SB)/8, $0xc200000000000000
DATA poly<>+8(SB)/8, $0
GLOBL poly<>(SB), RODATA|NOPTR, $16

// PRODUCTS multiplies the four blocks in Z1 by four powers: the low and high parts go to Z14 and Z15, both middle parts
// together with those two to Z16: three multiplications in place of four (Karatsuba).
#define PRODUCTS(at) \
	VPSHUFD    $0x4e, Z1, Z2 \
	VPXORQ     Z1, Z2, Z2    \
	VPCLMULQDQ $0x00, at(SI), Z1, Z14 \
	VPCLMULQDQ $0x11, at(SI), Z1, Z15 \
	VPCLMULQDQ $0x00, 512+at(SI), Z2, Z16

// SUM adds the products to Z10, Z11 and Z12.
#define SUM \
	VPXORQ Z14, Z10, Z10 \
	VPXORQ Z15, Z11, Z11 \
	VPXORQ Z16, Z12, Z12

// MORE takes four blocks, and adds their products.
#define MORE(at) \
	VMOVDQU64 at(DX), Z1  \
	VPSHUFB   Z31, Z1, Z1 \
	PRODUCTS(at)          \
	SUM

// MORETO is MORE, which also stores the blocks as they were loaded, R8 bytes behind where they lie.
#define MORETO(at) \
	VMOVDQU64 at(DX), Z1  \
	VMOVDQU64 Z1, at(DX)(R8*1) \
	VPSHUFB   Z31, Z1, Z1 \
	PRODUCTS(at)          \
	SUM

// ADD adds the four lanes of a register to its first one.
#define ADD(z, y, x) \
	VEXTRACTI64X4 $1, z, Y18     \
	VPXORQ        Y18, y, y      \
	VEXTRACTI32X4 $1, y, X18     \
	VPXORQ        X18, x, x

// FOLD is half of a reduction of X10.
#define FOLD \
	VPCLMULQDQ $0x00, X30, X10, X18 \
	VPSHUFD    $0x4e, X10, X10      \
	VPXORQ     X18, X10, X10

// REDUCE brings the low, high and middle parts in X10 to X13 to X0, and clears
// the rest of Z0.
#define REDUCE \
	VPXORQ  X13, X12, X12 \
	VPSLLDQ $8, X12, X13  \
	VPSRLDQ $8, X12, X12  \
	VPXORQ  X13, X10, X10 \
	VPXORQ  X12, X11, X11 \
	FOLD                  \
	FOLD                  \
	VPXORQ  X11, X10, X0

// func ghash512(sum *[16]byte, k *keys, p *byte, n int)
TEXT ·ghash512(SB), NOSPLIT, $0-32
	MOVQ sum+0(FP), DI
	MOVQ k+8(FP), SI
	MOVQ p+16(FP), DX
	MOVQ n+24(FP), CX
	VMOVDQU64 (DI), X0
	VBROADCASTI32X4 reverse<>(SB), Z31
	VMOVDQU64 poly<>(SB), X30

// The first four blocks come last: only they wait for the sum of those before.
wide:
	CMPQ CX, $512
	JLT  narrow
	VMOVDQU64 64(DX), Z1
	VPSHUFB   Z31, Z1, Z1
	PRODUCTS(64)
	VMOVDQA64 Z14, Z10
	VMOVDQA64 Z15, Z11
	VMOVDQA64 Z16, Z12
	MORE(128)
	MORE(192)
	MORE(256)
	MORE(320)
	MORE(384)
	MORE(448)
	VMOVDQU64 (DX), Z1
	VPSHUFB   Z31, Z1, Z1
	VPXORQ    Z0, Z1, Z1
	PRODUCTS(0)
	SUM
	VPTERNLOGQ $0x96, Z10, Z11, Z12
	VPXORQ Z13, Z13, Z13
	ADD(Z10, Y10, X10)
	ADD(Z11, Y11, X11)
	ADD(Z12, Y12, X12)
	REDUCE
	ADDQ $512, DX
	SUBQ $512, CX
	JMP  wide

narrow:
	VMOVDQU64 496(SI), X5

block:
	CMPQ CX, $16
	JLT  end
	VMOVDQU64 (DX), X1
	VPSHUFB   X31, X1, X1
	VPXORQ    X0, X1, X1
	VPCLMULQDQ $0x00, X5, X1, X10
	VPCLMULQDQ $0x11, X5, X1, X11
	VPCLMULQDQ $0x01, X5, X1, X12
	VPCLMULQDQ $0x10, X5, X1, X13
	REDUCE
	ADDQ $16, DX
	SUBQ $16, CX
	JMP  block

end:
	VMOVDQU64 X0, (DI)
	VZEROUPPER
	RET

// func ghashCopy512(sum *[16]byte, k *keys, to, p *byte, n int)
TEXT ·ghashCopy512(SB), NOSPLIT, $0-40
	MOVQ sum+0(FP), DI
	MOVQ k+8(FP), SI
	MOVQ to+16(FP), R8
	MOVQ p+24(FP), DX
	MOVQ n+32(FP), CX
	SUBQ DX, R8
	VMOVDQU64 (DI), X0
	VBROADCASTI32X4 reverse<>(SB), Z31
	VMOVDQU64 poly<>(SB), X30

copy:
	VMOVDQU64 64(DX), Z1
	VMOVDQU64 Z1, 64(DX)(R8*1)
	VPSHUFB   Z31, Z1, Z1
	PRODUCTS(64)
	VMOVDQA64 Z14, Z10
	VMOVDQA64 Z15, Z11
	VMOVDQA64 Z16, Z12
	MORETO(128)
	MORETO(192)
	MORETO(256)
	MORETO(320)
	MORETO(384)
	MORETO(448)
	VMOVDQU64 (DX), Z1
	VMOVDQU64 Z1, (DX)(R8*1)
	VPSHUFB   Z31, Z1, Z1
	VPXORQ    Z0, Z1, Z1
	PRODUCTS(0)
	SUM
	VPTERNLOGQ $0x96, Z10, Z11, Z12
	VPXORQ Z13, Z13, Z13
	ADD(Z10, Y10, X10)
	ADD(Z11, Y11, X11)
	ADD(Z12, Y12, X12)
	REDUCE
	ADDQ $512, DX
	SUBQ $512, CX
	JNE  copy
	VMOVDQU64 X0, (DI)
	VZEROUPPER
	RET
