package kernels

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libnvrtc"
	"github.com/moewire/moewire/core/internal/testenv"
)

var update = flag.Bool("update", false, "rewrite testdata/uses.txt")

const golden = "testdata/uses.txt"

// TestEveryKernelCompilesForEveryTarget, without a GPU or a driver, by another compiler
// than that of releases, which `make kernels` looks at in the same way: no kernel spills,
// and what each uses is what the table says. (-update rewrites it; a compiler of another
// version may need that.)
func TestEveryKernelCompilesForEveryTarget(t *testing.T) {
	testenv.InLong(t)
	table := usesOf(t, Targets)
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(table), 0o600))
	}
	assert.Equal(t, readGolden(t), table)
}

func readGolden(t *testing.T) string {
	text, err := os.ReadFile(golden)
	require.NoError(t, err)
	return string(text)
}

// usesOf compiles all kernels for each target, and makes the table.
func usesOf(t *testing.T, targets []string) string {
	lib, err := libnvrtc.Load(testenv.Toolkit(t, "lib/libnvrtc.so.*"))
	require.NoError(t, err)
	major, minor, err := lib.Version()
	require.NoError(t, err)
	var images []Image
	for _, target := range targets {
		image, err := Compile(lib, target)
		require.NoError(t, err)
		assert.Equal(t, "\x7fELF", string(image.Code[:4]), target)
		require.Len(t, image.Uses, 25, target)
		for _, u := range image.Uses {
			assert.Zero(t, u.SpillStoreBytes+u.SpillLoadBytes+u.StackBytes, "%s for %s spills", u.Kernel, target)
			assert.Regexp(t, "^moewire_(dispatch|rows|combine|outputs)_", u.Kernel)
		}
		images = append(images, image)
	}
	return UsesTable(fmt.Sprintf("NVRTC %d.%d", major, minor), images)
}

// TestOptionsThatMayBeUnknown: with a compiler that knows them, and with one that does not.
func TestOptionsThatMayBeUnknown(t *testing.T) {
	lib, err := libnvrtc.Load(testenv.Toolkit(t, "lib/libnvrtc.so.*"))
	require.NoError(t, err)
	const text = "#include \"release.cu\"\n"
	_, err = compile(lib, "sm_90", text, hasty)
	require.NoError(t, err)
	unknown := []string{"--no-such-option"}
	_, err = compile(lib, "sm_90", text, unknown)
	require.ErrorContains(t, err, "no-such-option")
	image, err := compileWith(lib, "sm_90", text, unknown)
	require.NoError(t, err)
	require.Len(t, image.Uses, 1)
}

// TestPTX is what devices run that were not there when this was built. `make kernels` compiles it,
// too, by its own compiler.
func TestPTX(t *testing.T) {
	testenv.InLong(t)
	lib, err := libnvrtc.Load(testenv.Toolkit(t, "lib/libnvrtc.so.*"))
	require.NoError(t, err)
	image, err := Compile(lib, "compute_80")
	require.NoError(t, err)
	text := string(image.Code)
	assert.Contains(t, text, ".target sm_80")
	assert.Contains(t, text, ".entry moewire_dispatch_place")
	assert.NoError(t, CheckPTX(text))
}

// TestAssemblyIsInOneHeader, by the names of what it does.
func TestAssemblyIsInOneHeader(t *testing.T) {
	entries, err := files.ReadDir(".")
	require.NoError(t, err)
	var with []string
	for _, entry := range entries {
		text, err := files.ReadFile(entry.Name())
		require.NoError(t, err)
		if regexp.MustCompile(`\basm\b`).Match(text) {
			with = append(with, entry.Name())
		}
	}
	assert.Equal(t, []string{"memory_order.cuh"}, with)
}

func TestBadSource(t *testing.T) {
	lib, err := libnvrtc.Load(testenv.Toolkit(t, "lib/libnvrtc.so.*"))
	require.NoError(t, err)
	_, err = Compile(lib, "sm_12345")
	assert.ErrorContains(t, err, "sm_12345")
}
