#include "textflag.h"

// The two lanes of a register number: X1 and X2 are the states of the first one (ABEF, CDGH), X3 to X6 its last 16
// words; X7 and X8, X9 to X12 those of the second one. SHA256RNDS2 takes its words from X0.

// Four rounds of both lanes, with the words m and n and the constants at off.
#define rounds(off, m, n) \
	MOVOU  off(R8), X13; \
	MOVO   m, X0; \
	PADDL  X13, X0; \
	SHA256RNDS2 X0, X1, X2; \
	PSHUFD $0x0E, X0, X0; \
	SHA256RNDS2 X0, X2, X1; \
	MOVO   n, X0; \
	PADDL  X13, X0; \
	SHA256RNDS2 X0, X7, X8; \
	PSHUFD $0x0E, X0, X0; \
	SHA256RNDS2 X0, X8, X7

// Loads four words of both lanes.
#define load(off, m, n) \
	MOVOU  off(R9), m; \
	PSHUFB X14, m; \
	MOVOU  off(R10), n; \
	PSHUFB X14, n

// Begins the words that come 16 behind those of a, of which b are the next ones.
#define begin(a, b) \
	SHA256MSG1 b, a

// Ends the words next, with the last ones and those before.
#define end(next, last, before) \
	MOVO    last, X13; \
	PALIGNR $4, before, X13; \
	PADDL   X13, next; \
	SHA256MSG2 last, next

#define schedule(off, a0, a1, a2, a3, b0, b1, b2, b3) \
	rounds(off, a3, b3); \
	end(a0, a3, a2); \
	end(b0, b3, b2); \
	begin(a2, a3); \
	begin(b2, b3)

// func compress(out *[2]state, from *state, k *[64]uint32, p, q *byte, n int)
TEXT ·compress(SB), NOSPLIT, $0-48
	MOVQ out+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ k+16(FP), R8
	MOVQ p+24(FP), R9
	MOVQ q+32(FP), R10
	MOVQ n+40(FP), CX

	// Words are big-endian.
	MOVQ $0x0405060700010203, AX
	MOVQ AX, X14
	MOVQ $0x0c0d0e0f08090a0b, AX
	MOVQ AX, X13
	PUNPCKLQDQ X13, X14

	MOVOU (SI), X1
	MOVOU 16(SI), X2
	MOVO  X1, X7
	MOVO  X2, X8

block:
	MOVOU X1, (DI)
	MOVOU X2, 16(DI)
	MOVOU X7, 32(DI)
	MOVOU X8, 48(DI)

	load(0, X3, X9)
	rounds(0, X3, X9)
	load(16, X4, X10)
	rounds(16, X4, X10)
	begin(X3, X4)
	begin(X9, X10)
	load(32, X5, X11)
	rounds(32, X5, X11)
	begin(X4, X5)
	begin(X10, X11)
	load(48, X6, X12)
	schedule(48, X3, X4, X5, X6, X9, X10, X11, X12)
	schedule(64, X4, X5, X6, X3, X10, X11, X12, X9)
	schedule(80, X5, X6, X3, X4, X11, X12, X9, X10)
	schedule(96, X6, X3, X4, X5, X12, X9, X10, X11)
	schedule(112, X3, X4, X5, X6, X9, X10, X11, X12)
	schedule(128, X4, X5, X6, X3, X10, X11, X12, X9)
	schedule(144, X5, X6, X3, X4, X11, X12, X9, X10)
	schedule(160, X6, X3, X4, X5, X12, X9, X10, X11)
	schedule(176, X3, X4, X5, X6, X9, X10, X11, X12)
	schedule(192, X4, X5, X6, X3, X10, X11, X12, X9)
	rounds(208, X4, X10)
	end(X5, X4, X3)
	end(X11, X10, X9)
	rounds(224, X5, X11)
	end(X6, X5, X4)
	end(X12, X11, X10)
	rounds(240, X6, X12)

	MOVOU (DI), X13
	PADDL X13, X1
	MOVOU 16(DI), X13
	PADDL X13, X2
	MOVOU 32(DI), X13
	PADDL X13, X7
	MOVOU 48(DI), X13
	PADDL X13, X8

	ADDQ $64, R9
	ADDQ $64, R10
	DECQ CX
	JNZ  block

	MOVOU X1, (DI)
	MOVOU X2, 16(DI)
	MOVOU X7, 32(DI)
	MOVOU X8, 48(DI)
	RET
