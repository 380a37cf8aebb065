package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../../.."

// TestGenerated fails when a generated file is not what the generator makes of its source.
func TestGenerated(t *testing.T) {
	from, err := open(root)
	require.NoError(t, err)
	for _, out := range outputs {
		want, err := out.make(from)
		require.NoError(t, err, out.name)
		got, err := os.ReadFile(filepath.Join(root, out.name))
		require.NoError(t, err)
		if string(got) != string(want) {
			t.Errorf("%s is not what the generator makes: run `make generate`", out.name)
		}
	}
}

// TestValues: kernels get the value that Go has, however it is written.
func TestValues(t *testing.T) {
	tree := t.TempDir()
	folder := filepath.Join(tree, "core/ep/protocol")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	source := "package protocol\n\n//mw:kernels\nconst (\n\tA = iota + 3\n\tB\n\tC, D = -1, 0b101\n\tE = 1_000\n\tF = 0x10\n\tG = F | 1\n)\n"
	require.NoError(t, os.WriteFile(filepath.Join(folder, "a.go"), []byte(source), 0o600))
	p, err := parseProtocol(tree)
	require.NoError(t, err)
	var got []string
	for _, c := range p.blocks()[0].consts {
		got = append(got, c.name+"="+c.value)
	}
	require.Equal(t, []string{"A=3", "B=4", "C=-1", "D=5", "E=1000", "F=0x10", "G=17"}, got)
}

func TestCName(t *testing.T) {
	for name, want := range map[string]string{
		"MaxTopK": "MW_MAX_TOPK", "FlagFP32Outputs": "MW_FLAG_FP32_OUTPUTS", "FlagUE8M0": "MW_FLAG_UE8M0",
		"MaxSlotsCUDA": "MW_MAX_SLOTS_CUDA", "Detail": "MW_DETAIL",
	} {
		require.Equal(t, want, cName(name))
	}
}

func TestFieldsOf(t *testing.T) {
	fields, err := fieldsOf("const u8 *x; u64 a, b[2][MW_MAX_RANKS];\n  mw_slab slab;")
	require.NoError(t, err)
	require.Equal(t, []field{
		{typ: "u8", name: "x", pointer: true}, {typ: "u64", name: "a"},
		{typ: "u64", name: "b", length: []string{"2", "MW_MAX_RANKS"}}, {typ: "mw_slab", name: "slab"},
	}, fields)
	_, err = fieldsOf("void (*call)(int);")
	require.Error(t, err)
}

func TestArgumentsOf(t *testing.T) {
	types, err := argumentsOf("mw_buffer_t buffer, const void *data,\n                   uint64_t keys[4], mw_op_t *op")
	require.NoError(t, err)
	require.Equal(t, []string{"mw_buffer_t", "c_void_p", "POINTER(c_uint64)", "POINTER(mw_op_t)"}, types)
	types, err = argumentsOf("void")
	require.NoError(t, err)
	require.Empty(t, types)
	_, err = argumentsOf("mw_op_t **ops")
	require.Error(t, err)
}
