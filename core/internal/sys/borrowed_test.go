package sys

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestReadable(t *testing.T) {
	before := Stats()
	p, err := NewReadable()
	require.NoError(t, err)
	a, err := NewEvent()
	require.NoError(t, err)
	b, err := NewEvent()
	require.NoError(t, err)
	require.NoError(t, p.Add(a.Raw(), 0))
	require.NoError(t, p.Add(b.Raw(), 5))

	ready, err := p.Wait(0)
	require.NoError(t, err)
	assert.Zero(t, ready)
	require.NoError(t, Signal(b))
	for _, d := range []time.Duration{time.Minute, time.Minute + 1, 300 * time.Microsecond} { // it stays readable until it is taken back
		ready, err = p.Wait(d)
		require.NoError(t, err)
		assert.EqualValues(t, 1<<5, ready)
	}
	require.NoError(t, Unsignal(b))
	require.NoError(t, Unsignal(b))
	for _, d := range []time.Duration{time.Millisecond, time.Nanosecond, -time.Nanosecond} {
		ready, err = p.Wait(d)
		require.NoError(t, err)
		assert.Zero(t, ready)
	}
	require.NoError(t, Signal(a))
	require.NoError(t, p.Remove(a.Raw()))
	ready, err = p.Wait(time.Millisecond)
	require.NoError(t, err)
	assert.Zero(t, ready)
	for _, d := range []time.Duration{0, time.Nanosecond} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = p.Wait(d) }))
	}

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	assert.Equal(t, before.OpenFDs, Stats().OpenFDs)
}

func TestMapAnonymous(t *testing.T) {
	before := Stats()
	m, err := MapAnonymous(10000)
	require.NoError(t, err)
	require.Len(t, m.Bytes(), 10000)
	assert.Equal(t, make([]byte, 10000), m.Bytes())
	m.Bytes()[9999] = 1
	require.NoError(t, m.Unmap())
	assert.Equal(t, before, Stats())
	_, err = MapAnonymous(0)
	assert.Error(t, err)
}

// TestMapAnonymousWhereMappingsCount: a host that refuses anonymous memory of a size
// that it would have to promise gives a memory file, of which only what is touched
// counts. Where neither is to be had, the error is the mapping's and names the limits.
func TestMapAnonymousWhereMappingsCount(t *testing.T) {
	before := Stats()
	refusals := 1
	stop := InjectFaults(func(call string) error {
		if call == "mmap" && refusals > 0 {
			refusals--
			return unix.ENOMEM
		}
		return nil
	})
	m, err := MapAnonymous(10000)
	stop()
	require.NoError(t, err)
	require.Equal(t, make([]byte, 10000), m.Bytes())
	m.Bytes()[9999] = 1
	require.Equal(t, before.OpenFDs, Stats().OpenFDs, "it takes a descriptor for a moment")
	require.NoError(t, m.Unmap())

	for _, other := range []string{"memfd_create", "ftruncate", "mmap"} {
		stop = InjectFaults(func(call string) error {
			if call == "mmap" || call == other {
				return unix.ENOMEM
			}
			return nil
		})
		_, err = MapAnonymous(10000)
		stop()
		require.ErrorIs(t, err, unix.ENOMEM)
		require.ErrorContains(t, err, "mmap: ")
		require.ErrorContains(t, err, "RLIMIT_AS of this process: ulimit -v")
		require.Equal(t, before, Stats())
	}
}
