package protocol

import (
	"fmt"
	"slices"
	"strings"
)

// DType is the type of the values of a row: of the rows that a dispatch sends, and of expert
// outputs.
type DType uint8

// The types. Rows are BF16 or one of FP8, outputs are BF16 or FP32. An FP8 row comes with one
// scale per QuantBlock values; docs/numerics.md has the arithmetic.
const (
	BF16     DType = iota
	FP32           // of outputs only
	FP8            // e4m3 with float32 scales, amax/448
	FP8Pow2        // the same with scales rounded up to powers of two
	FP8UE8M0       // the scales of FP8Pow2 as exponent bytes, ScalesPerWord to a word
	Unknown        // what a rank says that knows other types
)

type facts struct {
	name, scales string
	use          use
	valueBytes   int64
	wordValues   int64 // values whose scales share a word of 4 bytes; 0: there are no scales
	flags        Flags
}

// use is what has values of a type.
type use uint8

const (
	rows use = 1 << iota
	outputs
)

var dtypes = [...]facts{
	BF16:     {"bf16", "", rows | outputs, 2, 0, 0},
	FP32:     {"float32", "", outputs, 4, 0, FlagFP32Outputs},
	FP8:      {"fp8", "float32", rows, 1, QuantBlock, FlagFP8},
	FP8Pow2:  {"fp8", "round_scale", rows, 1, QuantBlock, FlagFP8 | FlagPow2},
	FP8UE8M0: {"fp8", "round_scale with ue8m0", rows, 1, QuantBlock * ScalesPerWord, FlagFP8 | FlagUE8M0},
	Unknown:  {"unknown", "unknown", 0, 0, 0, 0},
}

func (d DType) facts() *facts { return &dtypes[min(d, Unknown)] }

// CheckRow says what is wrong with a type that rows cannot have.
func (d DType) CheckRow() error { return d.check("rows", rows) }

// CheckOutput says what is wrong with a type that expert outputs cannot have.
func (d DType) CheckOutput() error { return d.check("expert outputs", outputs) }

func (d DType) check(what string, u use) error {
	if d.facts().use&u != 0 {
		return nil // on the way of every call
	}
	var allowed []string
	for i := range dtypes {
		if f := &dtypes[i]; f.use&u != 0 && !slices.Contains(allowed, f.name) {
			allowed = append(allowed, f.name)
		}
	}
	return fmt.Errorf("%s of %s, allowed %s", what, d, strings.Join(allowed, " and "))
}

// Differ names the first difference between the types of two ranks' rows and outputs, and says
// both. ok is false if there is none.
func Differ(rows, theirRows, outputs, theirOutputs DType) (name, mine, theirs string, ok bool) {
	switch {
	case rows.String() != theirRows.String():
		return "dtype", rows.String(), theirRows.String(), true
	case rows != theirRows:
		return "the format of fp8 scales", rows.Scales(), theirRows.Scales(), true
	case outputs != theirOutputs:
		return "output dtype", outputs.String(), theirOutputs.String(), true
	}
	return "", "", "", false
}

// IsFP8 reports whether values have one byte, and scales.
func (d DType) IsFP8() bool { return d.facts().flags&FlagFP8 != 0 }

// String is the type of one value: "bf16", "float32", "fp8" or "unknown".
func (d DType) String() string { return d.facts().name }

// Scales is the format of the scales in words, "" without scales.
func (d DType) Scales() string { return d.facts().scales }

// RowBytes is the size of a row of so many values, without scales.
func (d DType) RowBytes(hidden int64) int64 { return hidden * d.facts().valueBytes }

// Multiple is what the number of values in a row is a multiple of.
func (d DType) Multiple() int64 { return max(RowMultiple, d.facts().wordValues) }

// ScaleWords is the number of 4-byte words that hold the scales of a row: 0 without scales.
func (d DType) ScaleWords(hidden int64) int64 {
	if n := d.facts().wordValues; n > 0 {
		return hidden / n
	}
	return 0
}

// Flags are the bits of an operation that say this type.
func (d DType) Flags() Flags { return d.facts().flags }
