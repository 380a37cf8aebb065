// Package protocol is the vocabulary of dispatch and combine: limits, dtypes, flags, and what
// the words say that ranks leave in one another's memory. docs/protocol.md says what ranks do
// with them. The CPU and the CUDA kernels take the same steps, each in its own code, with the
// same words. Each fact is stated here once, and generate makes the mirrors for other
// languages.
//
// A block of constants with the line //mw:kernels is for the kernels, too: MaxTopK would be
// MW_MAX_TOPK there, with the same comment.
package protocol

//go:generate go run ./generate ../../..
