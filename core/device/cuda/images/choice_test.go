package images

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/kernels"
	"github.com/moewire/moewire/core/internal/testenv"
)

// release is code for all that a release has code for.
func release() (all []Image) {
	for _, name := range kernels.Targets {
		all = append(all, Image{Target: name, Compiler: "NVRTC 12.9", Code: cubin(name)})
	}
	return append(all, Image{Target: kernels.PTXTarget, Compiler: "NVRTC 12.0", Code: ptx(kernels.PTXTarget)})
}

// TestLeastIsWhatCodeIsMadeFor: the oldest of all targets, and not a later one.
func TestLeastIsWhatCodeIsMadeFor(t *testing.T) {
	for _, each := range targetsOf(t, append([]string{kernels.PTXTarget}, kernels.Targets...)...) {
		assert.True(t, Least.notAbove(each.Capability), each)
	}
	assert.Equal(t, "sm_80", target{Capability: Least}.String())
}

// TestDescribe is what each device would get, with a release and with a build of
// the tree. A description is that of the code which it then gets.
func TestDescribe(t *testing.T) {
	const tooOld = "compute capability 7.5 is too old: the kernels need 8.0 or later"
	for _, c := range []struct {
		on                  Capability
		released, fromATree string
	}{
		{Capability{7, 5}, tooOld, tooOld}, // though this compiler knows it
		{Capability{8, 0}, "cubin sm_80, prebuilt by NVRTC 12.9", "cubin sm_80, to be compiled by NVRTC 13.0, /here/libnvrtc.so"},
		{Capability{8, 6}, "cubin sm_86, prebuilt by NVRTC 12.9", "cubin sm_86, to be compiled by NVRTC 13.0, /here/libnvrtc.so"},
		{Capability{8, 7}, "PTX compute_80, prebuilt by NVRTC 12.0", "PTX compute_86, to be compiled by NVRTC 13.0, /here/libnvrtc.so"},
		{Capability{8, 9}, "cubin sm_89, prebuilt by NVRTC 12.9", "PTX compute_86, to be compiled by NVRTC 13.0, /here/libnvrtc.so"},
		{Capability{9, 0}, "cubin sm_90, prebuilt by NVRTC 12.9", "cubin sm_90, to be compiled by NVRTC 13.0, /here/libnvrtc.so"},
		{Capability{10, 3}, "cubin sm_103, prebuilt by NVRTC 12.9", "PTX compute_90, to be compiled by NVRTC 13.0, /here/libnvrtc.so"},
		{Capability{12, 1}, "cubin sm_120, prebuilt by NVRTC 12.9", "PTX compute_90, to be compiled by NVRTC 13.0, /here/libnvrtc.so"},
		{Capability{15, 0}, "PTX compute_80, prebuilt by NVRTC 12.0", "PTX compute_90, to be compiled by NVRTC 13.0, /here/libnvrtc.so"},
	} {
		compiler := &fakeCompiler{archs: []int{75, 80, 86, 90}}
		assert.Equal(t, c.released, described(newFinder(packed(t, release()...), nil, "off"), c.on, ""), c.on)
		f := newFinder(nil, compiler, filepath.Join(t.TempDir(), "cache"))
		assert.Equal(t, c.fromATree, described(f, c.on, ""), c.on)
		assert.Empty(t, compiler.compiles)
		if c.released == tooOld {
			continue
		}
		_, description, err := newFinder(packed(t, release()...), nil, "off").find(c.on, Options{})
		require.NoError(t, err)
		assert.Equal(t, c.released, description)
		_, _, err = f.find(c.on, Options{})
		require.NoError(t, err)
		assert.Contains(t, c.fromATree, " "+compiler.compiles[0]+", ")
	}
}

// described is a description, or why there is none.
func described(f *finder, on Capability, only string) string {
	text, err := f.describe(on, Options{Only: only})
	if err != nil {
		return err.Error()
	}
	return text
}

// TestDescribeOfTheCache: code that was kept is named, and looking at it leaves it
// as old as it was; so is a cache that would keep nothing.
func TestDescribeOfTheCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	f := newFinder(nil, &fakeCompiler{archs: []int{90}}, dir)
	on := Capability{9, 0}
	_, _, err := f.find(on, Options{})
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	path, before := filepath.Join(dir, entries[0].Name()), time.Now().Add(-time.Hour).Truncate(time.Second)
	require.NoError(t, os.Chtimes(path, before, before))
	assert.Equal(t, "cubin sm_90, compiled before by NVRTC 13.0", described(f, on, ""))
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.True(t, info.ModTime().Equal(before))

	require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
	assert.Equal(t, "cubin sm_90, to be compiled by NVRTC 13.0, /here/libnvrtc.so", described(f, on, ""))
	f.cache = newCache("off", nil)
	assert.Equal(t, "cubin sm_90, to be compiled by NVRTC 13.0, /here/libnvrtc.so (and not kept: the cache is off)", described(f, on, ""))
}

// TestDescribeOfNothing says what was tried, as find does.
func TestDescribeOfNothing(t *testing.T) {
	text := described(newFinder(nil, nil, "off"), Capability{9, 0}, "")
	assert.Contains(t, text, "no code for compute capability 9.0: this build has no prebuilt code")
	assert.Contains(t, text, "NVRTC: no compiler, tried: here")
	text = described(newFinder(packed(t, release()...), nil, "off"), Capability{9, 0}, "compile")
	assert.Contains(t, text, "no code for compute capability 9.0: NVRTC: no compiler")
	assert.Equal(t, "compute capability 0.9 is none", described(newFinder(nil, nil, "off"), Capability{0, 9}, ""))
	assert.Contains(t, described(newFinder(nil, nil, "off"), Capability{9, 0}, "fast"), "allowed are cubin, ptx and compile")
}

// TestWhereTheCompilerIs asks NVRTC itself.
func TestWhereTheCompilerIs(t *testing.T) {
	path := testenv.Toolkit(t, "lib/libnvrtc.so.1*")
	t.Setenv("MOEWIRE_NVRTC", path)
	t.Setenv("MOEWIRE_CUDA_CODE", "")
	text, err := Compiler(Options{})
	require.NoError(t, err)
	assert.Regexp(t, `^NVRTC 1\d\.\d+, `+path+`$`, text)
	description, err := Describe(9, 0, Options{CacheDir: "off"})
	require.NoError(t, err)
	assert.Equal(t, "cubin sm_90, to be compiled by "+text+" (and not kept: the cache is off)", description)
	t.Setenv("MOEWIRE_NVRTC", "/nowhere/libnvrtc.so")
	_, err = Compiler(Options{})
	assert.ErrorContains(t, err, "tried: /nowhere/libnvrtc.so (")
}
