package images

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/kernels"
)

func targetsOf(t *testing.T, names ...string) (all []target) {
	for _, name := range names {
		parsed, err := parseTarget(name)
		require.NoError(t, err)
		require.Equal(t, name, parsed.String())
		all = append(all, parsed)
	}
	return all
}

// TestChoice is what each device gets of a release's code.
func TestChoice(t *testing.T) {
	from := targetsOf(t, append([]string{kernels.PTXTarget}, kernels.Targets...)...)
	for capability, want := range map[Capability]string{
		{7, 5}:  "", // older than all code
		{8, 0}:  "sm_80",
		{8, 6}:  "sm_86",
		{8, 7}:  "compute_80", // embedded: no cubin of another processor
		{8, 8}:  "sm_86",
		{8, 9}:  "sm_89",
		{9, 0}:  "sm_90",
		{9, 9}:  "sm_90",
		{10, 0}: "sm_100",
		{10, 1}: "compute_80",
		{10, 2}: "sm_100",
		{10, 3}: "sm_103",
		{10, 7}: "sm_103",
		{11, 0}: "compute_80", // of no major version that has a cubin
		{12, 0}: "sm_120",
		{12, 1}: "sm_120",
		{13, 0}: "compute_80",
	} {
		got := ""
		if i := choose(capability, from); i >= 0 {
			got = from[i].String()
		}
		assert.Equal(t, want, got, "capability %v", capability)
	}
}

// TestChoiceIsOfTheBest, in whatever order the code lies.
func TestChoiceIsOfTheBest(t *testing.T) {
	for _, c := range []struct {
		from []string
		on   Capability
		want int
	}{
		{[]string{"compute_80", "sm_90"}, Capability{9, 0}, 1},
		{[]string{"sm_90", "compute_90"}, Capability{9, 0}, 0},
		{[]string{"compute_90", "compute_80"}, Capability{12, 0}, 0},
		{[]string{"compute_80", "compute_90"}, Capability{12, 0}, 1},
		{[]string{"compute_80", "compute_100"}, Capability{9, 0}, 0},
		{[]string{"sm_80", "sm_86", "sm_89"}, Capability{8, 6}, 1},
		{[]string{"sm_89", "sm_86", "sm_80"}, Capability{8, 9}, 0},
		{[]string{"sm_87"}, Capability{8, 9}, -1},
		{[]string{"sm_87", "sm_86"}, Capability{8, 7}, 0},
		{[]string{"sm_103", "sm_90"}, Capability{10, 0}, -1},
		{nil, Capability{9, 0}, -1},
	} {
		assert.Equal(t, c.want, choose(c.on, targetsOf(t, c.from...)), "%v on %v", c.from, c.on)
	}
}

func TestTargets(t *testing.T) {
	for name, want := range map[string]Capability{"sm_80": {8, 0}, "sm_103": {10, 3}, "compute_121": {12, 1}} {
		got, err := parseTarget(name)
		require.NoError(t, err)
		assert.Equal(t, want, got.Capability)
	}
	for _, bad := range []string{"", "sm_8", "sm_90a", "sm_100f", "sm_080", "sm_1000", "SM_90", "lto_80", " sm_80", "sm_80\n"} {
		_, err := parseTarget(bad)
		assert.ErrorContains(t, err, fmt.Sprintf("%q is no target", bad))
	}
}
