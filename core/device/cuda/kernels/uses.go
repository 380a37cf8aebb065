package kernels

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// UsesTable says what each kernel takes on each target, by one compiler.
func UsesTable(compiler string, images []Image) string {
	var table strings.Builder
	fmt.Fprintf(&table, "# %s: registers per thread, bytes of shared memory per block\n", compiler)
	for _, image := range images {
		all := slices.SortedFunc(slices.Values(image.Uses), func(a, b Use) int { return cmp.Compare(a.Kernel, b.Kernel) })
		for _, u := range all {
			fmt.Fprintf(&table, "%-8s %-32s %3d %5d\n", image.Target, u.Kernel, u.Registers, u.SharedBytes)
		}
	}
	return table.String()
}

// CompareUses names the first line in which a table differs from the recorded one.
func CompareUses(recorded, table string) error {
	want, got := strings.Split(recorded, "\n"), strings.Split(table, "\n")
	for i := range max(len(want), len(got)) {
		a, b := lineOf(want, i), lineOf(got, i)
		if a != b {
			return fmt.Errorf("line %d: recorded is %q, the compiler gives %q", i+1, a, b)
		}
	}
	return nil
}

func lineOf(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// forbidden in PTX: a trap ends all that runs on the device, and the others round
// otherwise than docs/numerics.md says.
var forbidden = []string{"trap;", "fma.rn", ".approx."}

// CheckPTX fails if PTX has an instruction that no kernel may have.
func CheckPTX(text string) error {
	for _, f := range forbidden {
		if strings.Contains(text, f) {
			return fmt.Errorf("the PTX has %q", f)
		}
	}
	return nil
}
