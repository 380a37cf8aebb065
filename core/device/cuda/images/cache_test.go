package images

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// found asks for code of a device that NVRTC knows.
func found(t *testing.T, f *finder) string {
	t.Helper()
	code, description, err := f.find(Capability{9, 0}, Options{})
	require.NoError(t, err)
	require.Equal(t, cubin("sm_90"), code)
	return description
}

const (
	compiledNow    = "cubin sm_90, compiled by NVRTC 13.0"
	compiledBefore = "cubin sm_90, compiled before by NVRTC 13.0"
)

func entry(t *testing.T, dir string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

// TestDamagedEntry is compiled again, and replaced.
func TestDamagedEntry(t *testing.T) {
	dir := t.TempDir()
	f := newFinder(nil, &fakeCompiler{archs: []int{90}}, dir)
	require.Equal(t, compiledNow, found(t, f))
	path := entry(t, dir)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	other, err := Pack("source", []Image{{Target: "sm_90", Compiler: "NVRTC 12.9", Code: cubin("other")}})
	require.NoError(t, err)
	for what, bad := range map[string][]byte{
		"empty": {}, "cut": whole[:len(whole)/2], "flipped": flipped, "zeros": make([]byte, len(whole)),
		"of other sources": packedOf(t, "other"), "more than one": packed(t, some()...), "of another compiler": other,
		"huge": make([]byte, maxArchiveBytes+100),
	} {
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		assert.Equal(t, compiledNow, found(t, f), what)
		assert.Equal(t, compiledBefore, found(t, f), what)
		again, err := os.ReadFile(entry(t, dir))
		require.NoError(t, err)
		assert.Equal(t, whole, again)
	}
}

// TestFullDisk: code that cannot be kept is used all the same; nothing is left.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	f := newFinder(nil, &fakeCompiler{archs: []int{90}}, dir)
	f.cache.write = func(file *os.File, data []byte) error {
		n, err := file.Write(data[:len(data)/2])
		require.NoError(t, err)
		require.NotZero(t, n)
		return syscall.ENOSPC
	}
	assert.Equal(t, compiledNow+" (not kept: no space left on device)", found(t, f))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	f.cache.write = writeAll
	assert.Equal(t, compiledNow, found(t, f))
	f.cache.write = func(*os.File, []byte) error { return syscall.ENOSPC }
	assert.Equal(t, compiledBefore, found(t, f), "what was kept is used on a full disk")
}

// TestReadOnly: what is kept is used, what is not is compiled each time.
func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	c := &fakeCompiler{archs: []int{80, 90}}
	f := newFinder(nil, c, dir)
	require.Equal(t, compiledNow, found(t, f))
	require.NoError(t, os.Chmod(dir, 0o500))
	t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
	f.cache.write = func(*os.File, []byte) error { return syscall.EROFS } // the superuser may write
	assert.Equal(t, compiledBefore, found(t, f))
	for range 2 {
		_, description, err := f.find(Capability{8, 0}, Options{})
		require.NoError(t, err)
		assert.Contains(t, description, "cubin sm_80, compiled by NVRTC 13.0 (not kept: ")
	}
	require.Equal(t, []string{"sm_90", "sm_80", "sm_80"}, c.compiles)
}

// TestNoFolder: no cache is no reason to fail.
func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	open := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	for dir, why := range map[string]string{
		"off": "the cache is off", file + "/sub": "not a directory", open: "can be changed by other users",
	} {
		assert.Regexp(t, `^cubin sm_90, compiled by NVRTC 13\.0 \(not kept: .*`+why,
			found(t, newFinder(nil, &fakeCompiler{archs: []int{90}}, dir)))
	}
	f := newFinder(nil, &fakeCompiler{archs: []int{90}}, "")
	f.cache = newCache("", errors.New("no HOME"))
	assert.Equal(t, compiledNow+" (not kept: no HOME)", found(t, f))
}

// TestCodeOfOthersIsNotTaken: in a folder that others may write to.
func TestCodeOfOthersIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	f := newFinder(nil, &fakeCompiler{archs: []int{90}}, dir)
	found(t, f)
	require.Equal(t, compiledBefore, found(t, f))
	require.NoError(t, os.Chmod(dir, 0o770))
	require.Contains(t, found(t, f), compiledNow)
}

// TestEntryThatIsNoOwnFile: a pipe is not waited for, a link not followed, and a
// file that others could have changed not run; each is replaced.
func TestEntryThatIsNoOwnFile(t *testing.T) {
	dir := t.TempDir()
	f := newFinder(nil, &fakeCompiler{archs: []int{90}}, dir)
	found(t, f)
	path := entry(t, dir)
	elsewhere := filepath.Join(t.TempDir(), "kept")
	for what, spoil := range map[string]func() error{
		"pipe": func() error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) },
		"link": func() error { return errors.Join(os.Rename(path, elsewhere), os.Symlink(elsewhere, path)) },
		"mode": func() error { return os.Chmod(path, 0o666) },
	} {
		require.NoError(t, spoil(), what)
		require.Equal(t, compiledNow, found(t, f), what)
		require.Equal(t, compiledBefore, found(t, f), what)
	}
}

// TestCacheIsBounded: what was used longest ago goes first, and what another process
// left unfinished; other files stay.
func TestCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	c := newCache(dir, nil)
	image := func(i int) Image {
		return Image{Target: fmt.Sprintf("sm_%d0", i), Compiler: "NVRTC 13.0", Code: cubin("same")}
	}
	old := time.Now().Add(-24 * time.Hour)
	for i := 1; i <= 4; i++ {
		require.NoError(t, c.put("source", image(i)))
		used := old.Add(time.Duration(i) * time.Minute)
		require.NoError(t, os.Chtimes(c.path("source", image(i)), used, used))
	}
	for name, when := range map[string]time.Time{"new-1" + suffix: old, "new-2" + suffix: time.Now(), "notes.txt": old} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), when, when))
	}
	_, err := c.get("source", image(1)) // which makes it the latest
	require.NoError(t, err)
	info, err := os.Stat(c.path("source", image(1)))
	require.NoError(t, err)
	c.maxBytes = 3*info.Size() + info.Size()/2
	require.NoError(t, c.put("source", image(5)))
	for i, kept := range map[int]bool{1: true, 2: false, 3: false, 4: true, 5: true} {
		_, err := c.get("source", image(i))
		assert.Equal(t, kept, err == nil, "image %d: %v", i, err)
	}
	assert.NoFileExists(t, filepath.Join(dir, "new-1"+suffix))
	assert.FileExists(t, filepath.Join(dir, "new-2"+suffix))
	assert.FileExists(t, filepath.Join(dir, "notes.txt"))
}

// childDir tells a copy of this test which cache to use.
const childDir = "MOEWIRE_TEST_CACHE"

// TestTwoProcesses fill and damage one cache at the same time. Each always gets
// the code that it asked for.
func TestTwoProcesses(t *testing.T) {
	if dir := os.Getenv(childDir); dir != "" {
		useCache(t, dir)
		return
	}
	dir := t.TempDir()
	var children []*exec.Cmd
	for range 2 {
		child := exec.Command(os.Args[0], "-test.run=^TestTwoProcesses$")
		child.Env = append(os.Environ(), childDir+"="+dir)
		child.Stdout = &strings.Builder{}
		require.NoError(t, child.Start())
		children = append(children, child)
	}
	for _, child := range children {
		assert.NoError(t, child.Wait(), "%s", child.Stdout)
	}
	f := newFinder(nil, &fakeCompiler{archs: []int{90}}, dir)
	found(t, f)
	assert.Equal(t, compiledBefore, found(t, f))
	left, err := filepath.Glob(filepath.Join(dir, "new-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func useCache(t *testing.T, dir string) {
	for i := range 6 {
		f := newFinder(nil, &fakeCompiler{archs: []int{90}}, dir)
		if i%5 == 0 {
			f.cache.maxBytes = 1 // everything goes
		}
		found(t, f)
		path := f.cache.path("source", Image{Target: "sm_90", Compiler: "NVRTC 13.0"})
		switch i % 3 {
		case 0:
			_ = os.Truncate(path, 50)
		case 1:
			_ = os.Remove(path)
		}
	}
}
