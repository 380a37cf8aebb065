package images

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPlaces: the caller's first, then the loader's, then CUDA_HOME.
func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mine.so")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	env := func(name string) string {
		if name == "CUDA_PATH" {
			return "/cuda"
		}
		return ""
	}
	assert.Equal(t, []string{
		dir + "/libnvrtc.so.13", dir + "/libnvrtc.so.12", file, "/none",
		"libnvrtc.so.13", "libnvrtc.so.12", "/cuda/lib64", // no folder here, so as it is
	}, places(Options{NVRTC: []string{dir, file, "/none"}}, env))
}

// TestOverrideIsTheOnlyPlace, and the error names it.
func TestOverrideIsTheOnlyPlace(t *testing.T) {
	env := func(name string) string {
		if name == "MOEWIRE_NVRTC" {
			return "/nowhere/libnvrtc.so"
		}
		return ""
	}
	_, err := openCompiler(Options{NVRTC: []string{"/elsewhere"}}, env)
	require.ErrorContains(t, err, "tried: /nowhere/libnvrtc.so (")
	require.NotContains(t, err.Error(), "elsewhere")
}
