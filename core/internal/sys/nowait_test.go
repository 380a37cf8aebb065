//go:build linux

package sys

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/moewire/moewire/core/internal/testenv"
)

// What the kernel has in its memory is read at once, without an allocation. What it has dropped is not waited for.
func TestReadAtNow(t *testing.T) {
	fd, err := OpenFile(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer func() { require.NoError(t, fd.Close()) }()
	data := bytes.Repeat([]byte("moewire "), 1<<17)
	require.NoError(t, WriteAt(fd, 0, data))
	require.NoError(t, Datasync(fd))
	got := make([]byte, len(data)-3)
	noDisk, err := HasNoDisk(fd)
	require.NoError(t, err)
	if noDisk {
		testenv.Lacking(t, "disk", "the temporary folder is in memory")
	}
	require.NoError(t, ReadAtNow(fd, 3, got))
	require.True(t, bytes.Equal(data[3:], got))
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = ReadAtNow(fd, 3, got) }))
	require.ErrorIs(t, ReadAtNow(fd, int64(len(data))-3, got[:4]), io.ErrUnexpectedEOF)
	require.NoError(t, unix.Fadvise(fd.Raw(), 0, 0, unix.FADV_DONTNEED))
	require.ErrorIs(t, ReadAtNow(fd, 3, got), ErrAgain)
	require.Zero(t, testing.AllocsPerRun(1, func() {
		_ = unix.Fadvise(fd.Raw(), 0, 0, unix.FADV_DONTNEED)
		_ = ReadAtNow(fd, 3, got)
	}))
	require.NoError(t, ReadAt(fd, 3, got))
	require.True(t, bytes.Equal(data[3:], got))
	require.NoError(t, ReadAtNow(fd, 3, got), "it is in memory by now")
}

func TestReadAtNowFails(t *testing.T) {
	fd, err := NewMemfd("test")
	require.NoError(t, err)
	defer func() { require.NoError(t, fd.Close()) }()
	noDisk, err := HasNoDisk(fd)
	require.NoError(t, err)
	require.True(t, noDisk)
	for cause, want := range map[error]error{unix.EOPNOTSUPP: ErrWaits, unix.ENOSYS: ErrWaits, unix.EIO: unix.EIO, unix.EAGAIN: ErrAgain} {
		stop := FailCall("preadv2", cause)
		require.ErrorIs(t, ReadAtNow(fd, 0, make([]byte, 1)), want)
		stop()
	}
	require.True(t, IsUnreadable(fmt.Errorf("read: %w", unix.EIO)))
	require.True(t, IsUnreadable(wrap("madvise", unix.EHWPOISON)))
	for _, err := range []error{nil, io.EOF, ErrAgain, unix.EBADF, unix.EINVAL, unix.EMFILE} {
		require.False(t, IsUnreadable(err), "%v", err)
	}
}
