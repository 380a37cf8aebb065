package images

import (
	"fmt"
	"regexp"
	"strconv"
)

// Capability is a device's compute capability, such as 9.0.
type Capability struct{ Major, Minor int }

func (c Capability) String() string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }

// notAbove reports whether code for c may have instructions of d only.
func (c Capability) notAbove(d Capability) bool {
	return c.Major < d.Major || c.Major == d.Major && c.Minor <= d.Minor
}

// target is what code is made for: "sm_90" names a cubin, "compute_80" PTX.
type target struct {
	ptx bool
	Capability
}

func (t target) String() string {
	if t.ptx {
		return fmt.Sprintf("compute_%d%d", t.Major, t.Minor)
	}
	return fmt.Sprintf("sm_%d%d", t.Major, t.Minor)
}

// kind is what the code is called.
func (t target) kind() string {
	if t.ptx {
		return "PTX"
	}
	return "cubin"
}

// The last digit is the minor version. Names with a letter behind, of code for
// one architecture alone, are not made.
var targetForm = regexp.MustCompile(`^(sm|compute)_([1-9][0-9]?)([0-9])$`)

func parseTarget(name string) (target, error) {
	m := targetForm.FindStringSubmatch(name)
	if m == nil {
		return target{}, fmt.Errorf("%.40q is no target, such as sm_90 or compute_80", name)
	}
	major, _ := strconv.Atoi(m[2]) // one or two digits
	minor, _ := strconv.Atoi(m[3])
	return target{ptx: m[1] == "compute", Capability: Capability{major, minor}}, nil
}

// alone are processors of which the maker says that they do not run cubins
// of others of the same major version.
var alone = []Capability{{5, 3}, {6, 2}, {7, 2}, {8, 7}, {10, 1}}

func isAlone(c Capability) bool {
	for _, e := range alone {
		if e == c {
			return true
		}
	}
	return false
}

// runs reports whether a device runs code for a target. A cubin runs on the
// same major and the same or a later minor version; PTX on all that are not
// below it.
func (t target) runs(on Capability) bool {
	switch {
	case t.ptx:
		return t.notAbove(on)
	case t.Major != on.Major || t.Minor > on.Minor:
		return false
	case isAlone(on) || isAlone(t.Capability):
		return t.Capability == on
	}
	return true
}

// choose picks the best of some targets for a device: the cubin with the
// highest version of those that run, else such PTX. -1: none runs.
func choose(on Capability, from []target) int {
	best := -1
	for i, t := range from {
		if t.runs(on) && (best < 0 || better(t, from[best])) {
			best = i
		}
	}
	return best
}

func better(a, b target) bool {
	if a.ptx != b.ptx {
		return b.ptx
	}
	return b.notAbove(a.Capability) && a != b
}
