package cuda

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// linksOf are those of each of some devices.
func linksOf(t *testing.T, emu *cudatest.Driver, devices int) (all []Links) {
	for ordinal := range devices {
		d, err := Open(emu.Library, ordinal, emu.Code(t))
		require.NoError(t, err)
		l, err := d.Links()
		require.NoError(t, err)
		require.NoError(t, d.Close())
		all = append(all, l)
	}
	return all
}

// TestLinks: one way is none, and no answer is none.
func TestLinks(t *testing.T) {
	emu := emulate(t)
	require.Empty(t, linksOf(t, emu, 1)[0].Native)
	t.Setenv("EMULATOR_DEVICES", "3")
	l := linksOf(t, emu, 3)
	require.Equal(t, []uint64{l[1].Device, l[2].Device}, l[0].Native)
	require.Equal(t, []uint64{l[0].Device, l[2].Device}, l[1].Native)
	for _, way := range []string{"0-1", "1-0"} {
		t.Setenv("EMULATOR_NO_ATOMICS", way)
		l = linksOf(t, emu, 3)
		require.Equal(t, []uint64{l[2].Device}, l[0].Native, way)
		require.Equal(t, []uint64{l[2].Device}, l[1].Native, way)
		require.Len(t, l[2].Native, 2, way)
	}
	t.Setenv("EMULATOR_NO_ATOMICS", "1")
	for _, one := range linksOf(t, emu, 3) {
		require.Empty(t, one.Native)
	}
	t.Setenv("EMULATOR_NO_ATOMICS", "")
	emu.FailAfter("cuDeviceGetP2PAttribute", 0, libcuda.ErrInvalidValue)
	require.Len(t, linksOf(t, emu, 1)[0].Native, 1)
}

// TestLinksSayWhatFailed: what every driver has does not fail in silence.
func TestLinksSayWhatFailed(t *testing.T) {
	emu := emulate(t)
	t.Setenv("EMULATOR_DEVICES", "2")
	d, err := Open(emu.Library, 0, emu.Code(t))
	require.NoError(t, err)
	for _, call := range []string{"cuDeviceGetCount", "cuDeviceGet"} {
		emu.FailAfter(call, 0, libcuda.ErrNoDevice)
		_, err := d.Links()
		require.ErrorContains(t, err, call)
	}
	require.NoError(t, d.Close())
}

// TestRemoteAtomics: the kernels change no memory of another device but by stores,
// except where rows get places in no order. Whatever has the scope "sys" and is no
// load, store or fence is that addition, and it is called there and for the own
// memory alone.
func TestRemoteAtomics(t *testing.T) {
	source, err := os.ReadFile("kernels/memory_order.cuh")
	require.NoError(t, err)
	withSystemScope := regexp.MustCompile(`"(?:atom|red)\.\w+\.sys\S*`).FindAllString(string(source), -1)
	require.Equal(t, []string{`"atom.relaxed.sys.global.add.u64`}, withSystemScope)
	calls := regexp.MustCompile(`(?m)^.*\bmw_add_relaxed_sys\(.*$`)
	files, err := filepath.Glob("kernels/*.cu*")
	require.NoError(t, err)
	found := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if n := len(calls.FindAll(text, -1)); n > 0 && filepath.Base(file) != "memory_order.cuh" {
			found[filepath.Base(file)] = n
		}
	}
	require.Equal(t, map[string]int{"places.cuh": 1, "remote_take.cuh": 1}, found)
	places, err := os.ReadFile("kernels/places.cuh")
	require.NoError(t, err)
	require.Regexp(t, `ordered = c\.flags & MW_FLAG_ORDERED;\n\s+if \(!remote && !ordered\)\n\s+begin = mw_add_relaxed_sys`, string(places))
}
