package sys

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
