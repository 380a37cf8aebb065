// Run by TestFlushDenormals: a caller that has its thread flush subnormals gets the
// same results, and its own setting back.

#include "../kernels.h"

#include <immintrin.h>
#include <stdio.h>

static int check(int width, int fp32)
{
	const struct mwcpu_kernels *k = mwcpu_select(width);
	uint16_t row[8] = {1, 2, 3, 4, 5, 6, 7, 0x80}, out[8] = {0};
	uint32_t fp32_row[8];
	struct mwcpu_reduce_job job = {0, 0, 0};
	uintptr_t source = fp32 ? (uintptr_t)fp32_row : (uintptr_t)row;
	struct mwcpu_term term;
	float weight = 1;

	if (k == NULL)
		return 0;
	for (int i = 0; i < 8; i++)
		fp32_row[i] = (uint32_t)row[i] << 16;
	_mm_setcsr(0x9fc0); // flush results, take operands as zero
	mwcpu_reduce(k, (struct mwcpu_how){0}, (struct mwcpu_form){.fp32 = fp32}, out, 8, 1, 1, &source, &job, &weight, &term);
	if (_mm_getcsr() != 0x9fc0) {
		printf("%s: mxcsr is %#x after the call\n", k->name,
		       _mm_getcsr());
		return 1;
	}
	for (int i = 0; i < 8; i++) {
		if (out[i] != row[i]) {
			printf("%s: value %d is %#x, want %#x\n", k->name, i,
			       out[i], row[i]);
			return 1;
		}
	}
	return 0;
}

int main(void)
{
	return check(16, 0) | check(32, 0) | check(64, 0) | check(16, 1) |
	       check(32, 1) | check(64, 1);
}
