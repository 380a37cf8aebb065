package libcuda

import (
	"maps"
	"slices"
)

// Symbols are all functions of the driver that this package calls.
func Symbols() []string {
	var f functions
	return append(slices.Sorted(maps.Keys(f.required())), slices.Sorted(maps.Keys(f.optional()))...)
}
