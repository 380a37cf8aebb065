package medium

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
)

const punchHole = 2 | 1 // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE

// shared are a memory and files with a byte in the last segment, each with a descriptor for another process.
func shared(t *testing.T) map[string]struct {
	medium Medium
	fd     int
} {
	t.Helper()
	found := map[string]struct {
		medium Medium
		fd     int
	}{}
	m, err := NewMemory(leastBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	for name, a := range map[string]interface {
		Medium
		Size() int64
		Share() (*sys.FD, error)
	}{"memory": m, "files": opened(t, t.TempDir(), leastBytes)} {
		require.EqualValues(t, leastBytes, a.Size())
		require.NoError(t, a.Write(LeastSegments-1, 77, []byte("written")))
		fd, err := a.Share()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, fd.Close()) })
		found[name] = struct {
			medium Medium
			fd     int
		}{a, fd.Raw()}
	}
	return found
}

// A descriptor that was shared reads all segments, also what is written later, and changes nothing.
func TestSharedIsReadOnly(t *testing.T) {
	for name, s := range shared(t) {
		at := int64(LeastSegments-1)*LeastSegmentBytes + 77
		got := make([]byte, 7)
		read := func(want string) {
			n, err := syscall.Pread(s.fd, got, at)
			require.NoError(t, err)
			require.Equal(t, want, string(got[:n]), name)
		}
		read("written")
		_, err := syscall.Pwrite(s.fd, []byte("x"), at)
		require.Error(t, err, name)
		require.Error(t, syscall.Ftruncate(s.fd, 0), name)
		require.Error(t, syscall.Fallocate(s.fd, punchHole, 0, leastBytes), name)
		_, err = syscall.Mmap(s.fd, 0, leastBytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		require.Error(t, err, name)
		data, err := syscall.Mmap(s.fd, 0, leastBytes, syscall.PROT_READ, syscall.MAP_SHARED)
		require.NoError(t, err)
		require.Error(t, syscall.Mprotect(data, syscall.PROT_READ|syscall.PROT_WRITE), name)
		require.Error(t, syscall.Madvise(data, syscall.MADV_REMOVE), name)
		require.NoError(t, syscall.Munmap(data))
		require.NoError(t, s.medium.Write(LeastSegments-1, 77, []byte("changed")))
		read("changed")
	}
}

// Opened again for writing, as the file's owner may, memory is sealed all the same.
func TestSharedMemoryIsSealed(t *testing.T) {
	fd := shared(t)["memory"].fd
	f, err := os.OpenFile(fmt.Sprint("/proc/self/fd/", fd), os.O_RDWR, 0)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		return // the kernel refuses already
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	_, err = f.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, syscall.EPERM)
	require.ErrorIs(t, f.Truncate(0), syscall.EPERM)
	require.ErrorIs(t, f.Truncate(2*leastBytes), syscall.EPERM)
	require.ErrorIs(t, syscall.Fallocate(int(f.Fd()), punchHole, 0, leastBytes), syscall.EPERM)
	_, err = syscall.Mmap(int(f.Fd()), 0, leastBytes, syscall.PROT_WRITE, syscall.MAP_SHARED)
	require.Error(t, err)
}

// The first writes to a segment, which take its room, may run at the same time: so it is after a start.
func TestFirstWritesTogether(t *testing.T) {
	for _, s := range shared(t) {
		var all sync.WaitGroup
		for i := range int64(8) {
			all.Go(func() { require.NoError(t, s.medium.Write(1, i, []byte("x"))) })
		}
		all.Wait()
		got := make([]byte, 8)
		require.NoError(t, s.medium.Read(1, 0, got))
		require.Equal(t, "xxxxxxxx", string(got))
	}
}

// A want of memory is an error of the first write to a segment, and so no signal later.
func TestMemoryIsTakenFirst(t *testing.T) {
	m, err := NewMemory(leastBytes)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	stop := sys.FailCall("fallocate", syscall.ENOMEM)
	require.True(t, LacksRoom(m.Write(0, 0)))
	stop()
	require.NoError(t, m.Write(0, 0))
	var st syscall.Stat_t
	require.NoError(t, syscall.Fstat(m.fd.Raw(), &st))
	require.EqualValues(t, LeastSegmentBytes/512, st.Blocks)
}
