package sys

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestMapMore: bytes behind a mapping are mapped when no descriptor is left, also those that
// the file got later; those that it does not have are an error.
func TestMapMore(t *testing.T) {
	before := Stats()
	page := int64(PageSize())
	own, err := NewMemfd("test")
	require.NoError(t, err)
	require.NoError(t, Grow(own, 2*page))
	base, err := Map(own, 0, 2*page)
	require.NoError(t, err)
	theirs, err := Dup(own)
	require.NoError(t, err)
	require.NoError(t, theirs.Close()) // as a peer does: the owner has its own
	_, err = base.MapMore(4*page, page)
	require.ErrorIs(t, err, ErrBeyondEnd)
	require.NoError(t, Grow(own, 8*page))
	written, err := Map(own, 0, 8*page)
	require.NoError(t, err)
	require.NoError(t, own.Close())
	for _, c := range []struct{ off, n int64 }{{0, page}, {0, 8 * page}, {page, 1}, {5 * page, 2*page + 7}, {7 * page, page}} {
		more, err := base.MapMore(c.off, c.n)
		require.NoError(t, err, c)
		require.Len(t, more.Bytes(), int(c.n))
		written.Bytes()[c.off+c.n-1]++
		require.Equal(t, written.Bytes()[c.off:c.off+c.n], more.Bytes())
		require.Equal(t, before.Mappings+3, Stats().Mappings)
		require.NoError(t, more.Unmap())
	}
	for _, c := range []struct{ off, n int64 }{{8 * page, 1}, {7 * page, page + 1}, {0, 9 * page}} {
		_, err := base.MapMore(c.off, c.n)
		require.ErrorIs(t, err, ErrBeyondEnd, c)
	}
	for _, c := range []struct{ off, n int64 }{{-page, page}, {0, 0}, {0, -1}, {1, page}, {1 << 62, 1 << 62}} {
		_, err := base.MapMore(c.off, c.n)
		require.Error(t, err, c)
	}
	require.NoError(t, written.Unmap())
	require.NoError(t, base.Unmap())
	require.Equal(t, before, Stats())
}

// TestMapMoreLeavesOneRange: what lies before the bytes does not stay mapped.
func TestMapMoreLeavesOneRange(t *testing.T) {
	const name = "moewire-test-one-range"
	page := int64(PageSize())
	fd, err := NewMemfd(name)
	require.NoError(t, err)
	defer fd.Close()
	require.NoError(t, Grow(fd, 1024*page))
	base, err := Map(fd, 0, page)
	require.NoError(t, err)
	ranges := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return strings.Count(string(maps), name)
	}
	for range 3 {
		more, err := base.MapMore(1000*page, 2*page)
		require.NoError(t, err)
		require.Equal(t, 2, ranges())
		require.NoError(t, more.Unmap())
		_, err = base.MapMore(1023*page, 2*page)
		require.ErrorIs(t, err, ErrBeyondEnd)
		require.Equal(t, 1, ranges())
	}
	require.NoError(t, base.Unmap())
	require.Zero(t, ranges())
}

// TestMapMoreBeyondTheEnd: bytes far behind a file's end are told as such, also where so many
// could not be mapped; bytes of the file that cannot be mapped are a shortage.
func TestMapMoreBeyondTheEnd(t *testing.T) {
	page := int64(PageSize())
	fd, err := NewMemfd("test")
	require.NoError(t, err)
	defer fd.Close()
	require.NoError(t, Grow(fd, page))
	base, err := Map(fd, 0, page)
	require.NoError(t, err)
	before := Stats()
	for _, end := range []int64{1 << 40, 1<<47 - 4*page, 1 << 48} {
		_, err = base.MapMore(end-8*page, 8*page)
		require.ErrorIs(t, err, ErrBeyondEnd)
	}
	require.NoError(t, Grow(fd, 1<<47))
	_, err = base.MapMore(1<<46, 1<<46-2*page)
	require.ErrorIs(t, err, unix.ENOMEM)
	require.NotErrorIs(t, err, ErrBeyondEnd)
	require.Equal(t, before, Stats())
	require.NoError(t, base.Unmap())
}
