package kernels

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUsesTable: sorted by kernel, and a difference is named by its line.
func TestUsesTable(t *testing.T) {
	images := []Image{{Target: "sm_80", Uses: []Use{{Kernel: "b", Registers: 40}, {Kernel: "a", Registers: 7, SharedBytes: 12}}}}
	table := UsesTable("NVRTC 1.2", images)
	want := "# NVRTC 1.2: registers per thread, bytes of shared memory per block\n" +
		"sm_80    a                                  7    12\n" +
		"sm_80    b                                 40     0\n"
	require.Equal(t, want, table)
	require.NoError(t, CompareUses(want, table))
	images[0].Uses[0].Registers = 41
	require.ErrorContains(t, CompareUses(want, UsesTable("NVRTC 1.2", images)), "line 3")
	images[0].Uses = images[0].Uses[:1]
	require.ErrorContains(t, CompareUses(want, UsesTable("NVRTC 1.2", images)), "line 2")
	require.ErrorContains(t, CompareUses(want, want+"more"), "line 4")
}

func TestCheckPTX(t *testing.T) {
	require.NoError(t, CheckPTX("ld.global.u64 %rd1, [%rd2];"))
	for _, text := range []string{"trap;", "fma.rn.f32 %f1", "div.approx.f32"} {
		assert.Error(t, CheckPTX("mov.u32;\n"+text), text)
	}
}
