package images

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/kernels"
	"github.com/moewire/moewire/core/internal/testenv"
)

// fakeCompiler stands for NVRTC, and counts.
type fakeCompiler struct {
	minor    int
	archs    []int
	compiles []string
	err      error
}

func (c *fakeCompiler) Name() string                           { return "/here/libnvrtc.so" }
func (c *fakeCompiler) Version() (major, minor int, err error) { return 13, c.minor, nil }
func (c *fakeCompiler) Architectures() ([]int, error)          { return c.archs, nil }

func (c *fakeCompiler) compile(name string) ([]byte, error) {
	c.compiles = append(c.compiles, name)
	if t, _ := parseTarget(name); t.ptx {
		return ptx(name), c.err
	}
	return cubin(name), c.err
}

func newFinder(archive []byte, c *fakeCompiler, dir string) *finder {
	load := func(Options) (compiler, error) {
		if c == nil {
			return nil, errors.New("no compiler, tried: here")
		}
		return c, nil
	}
	return &finder{digest: "source", archive: archive, load: load, cache: newCache(dir, nil)}
}

// TestPrebuiltGoesFirst, and a compiler is not even looked for.
func TestPrebuiltGoesFirst(t *testing.T) {
	f := newFinder(packed(t, some()...), nil, "off")
	for _, c := range []struct {
		on         Capability
		only, want string
	}{
		{Capability{8, 9}, "", "cubin sm_80, prebuilt by NVRTC 12.9"},
		{Capability{9, 0}, "", "cubin sm_90, prebuilt by NVRTC 12.9"},
		{Capability{9, 0}, "cubin", "cubin sm_90, prebuilt by NVRTC 12.9"},
		{Capability{9, 0}, "ptx", "PTX compute_80, prebuilt by NVRTC 12.0"},
		{Capability{12, 0}, "", "PTX compute_80, prebuilt by NVRTC 12.0"},
	} {
		code, description, err := f.find(c.on, Options{Only: c.only})
		require.NoError(t, err)
		assert.Equal(t, c.want, description)
		assert.NotEmpty(t, code)
	}
}

// TestNoCode: the error says all that was tried.
func TestNoCode(t *testing.T) {
	for _, c := range []struct {
		archive []byte
		on      Capability
		only    string
		want    []string
	}{
		{nil, Capability{9, 0}, "", []string{"no code for compute capability 9.0", "no prebuilt code", "NVRTC: no compiler, tried: here"}},
		{packed(t, some()...), Capability{7, 5}, "", []string{"compute capability 7.5 is too old: the kernels need 8.0 or later"}},
		{packed(t, cubinsOnly()...), Capability{10, 0}, "", []string{"[sm_80 sm_90]) runs on it", "NVRTC: no compiler"}},
		{packed(t, some()...), Capability{12, 0}, "cubin", []string{"[sm_80 sm_90]) runs on it"}},
		{packedOf(t, "else"), Capability{9, 0}, "", []string{"prebuilt code: archive of kernels: made of other sources", "NVRTC"}},
		{packed(t, some()...)[:99], Capability{9, 0}, "ptx", []string{"prebuilt code: archive of kernels: damaged"}},
		{nil, Capability{9, 0}, "compile", []string{"NVRTC: no compiler"}},
		{nil, Capability{0, 9}, "", []string{"compute capability 0.9 is none"}},
		{nil, Capability{9, 10}, "", []string{"compute capability 9.10 is none"}},
		{nil, Capability{9, 0}, "fast", []string{`"fast", allowed are cubin, ptx and compile`}},
	} {
		_, _, err := newFinder(c.archive, nil, "off").find(c.on, Options{Only: c.only})
		for _, want := range c.want {
			assert.ErrorContains(t, err, want)
		}
	}
}

// cubinsOnly is an archive of a build that has no PTX.
func cubinsOnly() []Image {
	return []Image{{Target: "sm_80", Compiler: "NVRTC 12.9", Code: cubin("a")}, {Target: "sm_90", Compiler: "NVRTC 12.9", Code: cubin("b")}}
}

// TestCompiledFor: a cubin where the compiler knows the device, else PTX.
func TestCompiledFor(t *testing.T) {
	for _, c := range []struct {
		archs []int
		on    Capability
		want  string
	}{
		{[]int{80, 90, 100}, Capability{9, 0}, "cubin sm_90, compiled by NVRTC 13.0"},
		{[]int{80, 90, 100}, Capability{12, 0}, "PTX compute_100, compiled by NVRTC 13.0"},
		{[]int{100, 90, 80}, Capability{8, 6}, "PTX compute_80, compiled by NVRTC 13.0"},
	} {
		compiler := &fakeCompiler{archs: c.archs}
		_, description, err := newFinder(nil, compiler, t.TempDir()).find(c.on, Options{})
		require.NoError(t, err)
		assert.Equal(t, c.want, description)
	}
	_, _, err := newFinder(nil, &fakeCompiler{archs: []int{75, 89, 90}}, "off").find(Capability{8, 6}, Options{})
	assert.ErrorContains(t, err, "NVRTC 13.0: it compiles for [75 89 90] only, which does not run on 8.6")
}

// TestCompiledOnce: the second time it comes out of the cache; another compiler,
// device or source compiles again.
func TestCompiledOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "cache")
	c := &fakeCompiler{archs: []int{80, 90}}
	find := func(on Capability, digest string) string {
		f := newFinder(nil, c, dir)
		f.digest = digest
		code, description, err := f.find(on, Options{})
		require.NoError(t, err)
		require.Equal(t, cubin(c.compiles[len(c.compiles)-1]), code)
		return description
	}
	assert.Equal(t, "cubin sm_90, compiled by NVRTC 13.0", find(Capability{9, 0}, "source"))
	assert.Equal(t, "cubin sm_90, compiled before by NVRTC 13.0", find(Capability{9, 0}, "source"))
	require.Equal(t, []string{"sm_90"}, c.compiles)
	find(Capability{9, 0}, "other source")
	require.Equal(t, []string{"sm_90", "sm_90"}, c.compiles)
	c.minor = 1
	find(Capability{9, 0}, "source")
	find(Capability{8, 0}, "source")
	require.Equal(t, []string{"sm_90", "sm_90", "sm_90", "sm_80"}, c.compiles)
	find(Capability{8, 0}, "source")
	require.Len(t, c.compiles, 4)
}

func TestCompilerFails(t *testing.T) {
	c := &fakeCompiler{archs: []int{90}, err: errors.New("expected a ;")}
	dir := t.TempDir()
	_, _, err := newFinder(nil, c, dir).find(Capability{9, 0}, Options{})
	require.ErrorContains(t, err, "NVRTC 13.0: expected a ;")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing of it is kept")
}

// TestForCompilesInAFreshTree asks NVRTC itself, once: a build of the tree has
// no prebuilt code.
func TestForCompilesInAFreshTree(t *testing.T) {
	testenv.InLong(t)
	t.Setenv("MOEWIRE_NVRTC", testenv.Toolkit(t, "lib/libnvrtc.so.1*"))
	t.Setenv("MOEWIRE_CUDA_CODE", "")
	o := Options{CacheDir: t.TempDir()}
	code, description, err := For(9, 0, o)
	require.NoError(t, err)
	assert.Regexp(t, `^cubin sm_90, compiled by NVRTC 1\d\.\d+$`, description)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			again, description, err := For(9, 0, o)
			assert.NoError(t, err)
			assert.Contains(t, description, "compiled before")
			assert.Equal(t, code, again)
		})
	}
	all.Wait()
	t.Setenv("MOEWIRE_CUDA_CODE", "ptx")
	_, _, err = For(9, 0, o)
	assert.ErrorContains(t, err, "this build has no prebuilt code")
}

// TestTargetsHaveNames that this package reads.
func TestTargetsHaveNames(t *testing.T) {
	for _, name := range append([]string{kernels.PTXTarget}, kernels.Targets...) {
		_, err := parseTarget(name)
		require.NoError(t, err)
	}
	digest, err := kernels.Digest()
	require.NoError(t, err)
	require.Regexp(t, `^[0-9a-f]{64}-[0-9a-f]{8}$`, digest)
}
