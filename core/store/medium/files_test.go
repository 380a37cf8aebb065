package medium

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/record"
)

const leastBytes = LeastSegments * LeastSegmentBytes

func opened(t *testing.T, path string, capacityBytes int64) *Files {
	t.Helper()
	f, err := OpenFiles(path, capacityBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func TestSegmentBytesFor(t *testing.T) {
	for _, c := range []struct{ capacity, want int64 }{
		{leastBytes, 1 << 20}, {127 << 20, 1 << 20}, {128 << 20, 2 << 20}, {1 << 30, 16 << 20},
		{16 << 30, 256 << 20}, {1 << 40, 256 << 20},
	} {
		got, err := SegmentBytesFor(c.capacity)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%d", c.capacity)
	}
	_, err := SegmentBytesFor(leastBytes - 1)
	require.ErrorContains(t, err, "4194303 bytes given; allowed: 4194304 or more")
	_, err = SegmentBytesFor(1 << 60)
	require.ErrorContains(t, err, "allowed: 17592186044416 at most")
}

// TestAgain: what was written is there when the folder is opened next, with the same secret and size of segments.
func TestAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "store")
	f := opened(t, path, leastBytes)
	secret := f.Secret()
	require.NotZero(t, secret)
	require.NoError(t, f.Write(2, 4096, []byte("one"), []byte("two")))
	require.NoError(t, f.Sync(2))
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	f = opened(t, path, 200<<20) // larger: more segments of the same size
	require.Equal(t, secret, f.Secret())
	require.EqualValues(t, LeastSegmentBytes, f.SegmentBytes())
	require.Equal(t, 200, f.NumSegments())
	got := make([]byte, 6)
	require.NoError(t, f.Read(2, 4096, got))
	require.Equal(t, "onetwo", string(got))
	require.Error(t, f.Read(150, 0, got))
}

// TestShrinks: with a smaller capacity all segments are there until they are given back, which frees the disk; those at the end
// are not there at the next start. One that is too small for the segments begins anew with another secret.
func TestShrinks(t *testing.T) {
	path := t.TempDir()
	f := opened(t, path, 600<<20) // segments of 8 MiB
	require.Equal(t, 75, f.NumKept())
	for segment := range 20 {
		require.NoError(t, f.Write(segment, 0, []byte("x")))
	}
	secret := f.Secret()
	require.NoError(t, f.Close())
	f = opened(t, path, 40<<20)
	require.Equal(t, []int{20, 5}, []int{f.NumSegments(), f.NumKept()})
	require.False(t, f.Anew())
	require.Equal(t, secret, f.Secret())
	require.EqualValues(t, 160<<20, diskBytes(t, path))
	require.NoError(t, f.GiveBack([]int{19, 18, 17, 3}))
	require.EqualValues(t, 128<<20, diskBytes(t, path))
	got := []byte{1}
	require.NoError(t, f.Read(3, 0, got))
	require.Equal(t, []byte{0}, got)
	require.NoError(t, f.Read(16, 0, got))
	require.Equal(t, "x", string(got))
	require.NoError(t, f.Close())
	f = opened(t, path, 40<<20)
	require.Equal(t, []int{17, 5}, []int{f.NumSegments(), f.NumKept()})
	require.NoError(t, f.Close())
	f = opened(t, path, 200<<20) // larger again
	require.Equal(t, []int{25, 25}, []int{f.NumSegments(), f.NumKept()})
	require.NoError(t, f.Close())
	f = opened(t, path, 8<<20)
	require.True(t, f.Anew())
	require.Equal(t, []int{8, 8}, []int{f.NumSegments(), f.NumKept()})
	require.EqualValues(t, LeastSegmentBytes, f.SegmentBytes())
	require.NotEqual(t, secret, f.Secret())
	require.Error(t, f.Read(0, 0, make([]byte, 1)))
}

// diskBytes is what the blocks of a folder take of its disk.
func diskBytes(t *testing.T, path string) int64 {
	var st syscall.Stat_t
	require.NoError(t, syscall.Stat(filepath.Join(path, blocksName), &st))
	return st.Blocks * 512 &^ 0xffff // without what the file system notes of a file
}

// TestTooManySegments: a folder with segments too small for a capacity is refused, and stays as it is.
func TestTooManySegments(t *testing.T) {
	path := t.TempDir()
	require.NoError(t, opened(t, path, leastBytes).Close())
	_, err := OpenFiles(path, (MaxSegments+1)*LeastSegmentBytes)
	require.ErrorContains(t, err, "68720525312 bytes given; allowed: 68719476736 at most (65536 segments of 1048576")
	f := opened(t, path, MaxSegments*LeastSegmentBytes)
	require.Equal(t, MaxSegments, f.NumSegments())
}

// TestNeverWritten: a read where nothing was written has an error of its own.
func TestNeverWritten(t *testing.T) {
	f := opened(t, t.TempDir(), leastBytes)
	require.ErrorIs(t, f.Read(1, 0, make([]byte, 10)), io.ErrUnexpectedEOF)
	defer sys.FailCall("pread", os.ErrPermission)()
	require.ErrorIs(t, f.Read(1, 0, make([]byte, 10)), os.ErrPermission)
}

func TestSecondProcessIsRefused(t *testing.T) {
	path := t.TempDir()
	f := opened(t, path, leastBytes)
	_, err := OpenFiles(path, leastBytes)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, path)
	require.NoError(t, f.Close())
	opened(t, path, leastBytes)
}

// TestForeignFolder: a file that is none, and every bit that is wrong, the version's among them, are refused, and stay as they are.
func TestForeignFolder(t *testing.T) {
	path := t.TempDir()
	require.NoError(t, opened(t, path, leastBytes).Close())
	super := filepath.Join(path, superName)
	good, err := os.ReadFile(super)
	require.NoError(t, err)
	refuses := func(wrong []byte, what string) {
		require.NoError(t, os.WriteFile(super, wrong, 0o600))
		_, err := OpenFiles(path, leastBytes)
		require.ErrorIs(t, err, ErrForeign, what)
		left, err := os.ReadFile(super)
		require.NoError(t, err)
		require.Equal(t, wrong, left, what)
	}
	refuses([]byte("hello"), "none")
	refuses(good[:superBytes-1], "short")
	refuses([]byte{}, "empty")
	step := 1
	if testing.Short() {
		step = 97
	}
	for bit := 0; bit < 8*len(good); bit += step {
		wrong := bytes.Clone(good)
		wrong[bit/8] ^= 1 << (bit % 8)
		refuses(wrong, fmt.Sprint("bit ", bit))
	}
	require.NoError(t, os.WriteFile(super, good, 0o600))
	opened(t, path, leastBytes)
}

// FuzzSuper: whatever lies in the place of super, a store of it has segments of an allowed size, or there is none.
func FuzzSuper(f *testing.F) {
	path := f.TempDir()
	good, err := OpenFiles(path, leastBytes)
	require.NoError(f, err)
	require.NoError(f, good.Close())
	page, err := os.ReadFile(filepath.Join(path, superName))
	require.NoError(f, err)
	f.Add(page)
	f.Add(page[:100])
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Files{}
		if err := s.known(data); err != nil {
			require.ErrorIs(t, err, ErrForeign)
			require.Zero(t, s.segmentBytes)
			return
		}
		require.Contains(t, []int{1, 2, 4, 8, 16, 32, 64, 128, 256}, int(s.segmentBytes>>20))
		require.Equal(t, data, superOf(s.segmentBytes, s.secret))
	})
}

// TestBlocksWithoutSuper: a file that this store has not made is left as it is.
func TestBlocksWithoutSuper(t *testing.T) {
	path := t.TempDir()
	blocks := filepath.Join(path, blocksName)
	require.NoError(t, os.WriteFile(blocks, []byte("somebody's"), 0o600))
	_, err := OpenFiles(path, leastBytes)
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorContains(t, err, "blocks has 10 bytes")
	left, err := os.ReadFile(blocks)
	require.NoError(t, err)
	require.Equal(t, "somebody's", string(left))
}

// TestFullDisk: room is taken segment by segment before anything is written.
func TestFullDisk(t *testing.T) {
	f := opened(t, t.TempDir(), leastBytes)
	require.NoError(t, f.Write(0, 0, []byte("x")))
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EIO, os.ErrPermission} {
		stop := sys.FailCall("fallocate", cause)
		err := f.Write(1, 0, []byte("x"))
		require.ErrorIs(t, err, cause)
		require.Equal(t, cause != syscall.EIO && cause != os.ErrPermission, LacksRoom(err), "%v", cause)
		require.NoError(t, f.Write(0, 10, []byte("x")))
		stop()
	}
	require.NoError(t, f.Write(1, 0, []byte("x")))
}

func TestMemory(t *testing.T) {
	m, err := NewMemory(5 << 20)
	require.NoError(t, err)
	require.Equal(t, 5, m.NumSegments())
	require.NoError(t, m.Write(4, LeastSegmentBytes-4, []byte("ab"), []byte("cd")))
	require.Equal(t, "abcd", string(m.Bytes(4, LeastSegmentBytes-4, 4)))
	got := make([]byte, 2)
	require.NoError(t, m.Read(4, LeastSegmentBytes-2, got))
	require.Equal(t, "cd", string(got))
	require.False(t, m.Lasts())
	require.NoError(t, m.Close())
	_, err = NewMemory(record.PageBytes)
	require.ErrorContains(t, err, "capacity")
}
