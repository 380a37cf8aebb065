package pool

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBadConfig(t *testing.T) {
	_, err := New(Config[int]{Cap: 0, Make: func() (int, error) { return 0, nil }})
	require.ErrorContains(t, err, "cap 0, allowed 1")
	_, err = New(Config[int]{Cap: 1})
	require.ErrorContains(t, err, "make is nil")
}

// TestTrim (SC7): idle values go, down to the low water.
func TestTrim(t *testing.T) {
	p := &provider{}
	pool := poolOf(p, 8, false)
	var leases []Lease[*context]
	for range 8 {
		l, err := pool.Get()
		require.NoError(t, err)
		leases = append(leases, l)
	}
	for _, l := range leases {
		require.NoError(t, pool.Put(l))
	}
	require.Equal(t, 5, pool.Trim(3))
	require.EqualValues(t, 3, p.live.Load())
	require.Equal(t, 3, pool.Stats().Free)
	require.Equal(t, 0, pool.Trim(3))
}

// TestCleanFails: a value that cannot be cleaned is destroyed, and its place
// serves a waiting caller.
func TestCleanFails(t *testing.T) {
	p := &provider{}
	pool := poolOf(p, 1, false)
	pool.cfg.Clean = func(*context) error { return errNoMemory }
	l, err := pool.Get()
	require.NoError(t, err)
	got := make(chan error)
	go func() {
		_, err := pool.Wait(time.Now().Add(5 * time.Second))
		got <- err
	}()
	for waiting(pool) == 0 {
		time.Sleep(time.Millisecond)
	}
	require.NoError(t, pool.Put(l))
	require.Equal(t, 1, pool.Drain(8))
	require.NoError(t, <-got)
	require.EqualValues(t, 1, p.destroyed.Load())
	require.EqualValues(t, 1, p.live.Load())
}

// TestClose: waits end, what is free goes, what is leased goes when it is back.
func TestClose(t *testing.T) {
	p := &provider{}
	pool := poolOf(p, 2, false)
	a, err := pool.Get()
	require.NoError(t, err)
	b, err := pool.Get()
	require.NoError(t, err)
	ended := make(chan error)
	go func() {
		_, err := pool.Wait(time.Now().Add(5 * time.Second))
		ended <- err
	}()
	for waiting(pool) == 0 {
		time.Sleep(time.Millisecond)
	}
	pool.Close()
	pool.Close()
	require.ErrorIs(t, <-ended, ErrClosed)
	require.EqualValues(t, 2, p.live.Load())
	require.NoError(t, pool.Put(a))
	require.NoError(t, pool.Put(b))
	require.EqualValues(t, 0, p.live.Load())
	_, err = pool.Get()
	require.ErrorIs(t, err, ErrClosed)
}

func TestWaitTimesOut(t *testing.T) {
	pool := poolOf(&provider{}, 1, false)
	l, err := pool.Get()
	require.NoError(t, err)
	_, err = pool.Wait(time.Now().Add(time.Millisecond))
	require.ErrorIs(t, err, ErrWouldBlock)
	require.Equal(t, 0, waiting(pool))
	require.NoError(t, pool.Put(l))
	require.Equal(t, 1, pool.Stats().Free, "the value went to somebody who had left")
}

// TestAllocatesNothing (SC2, SC4), at the bound and below it.
func TestAllocatesNothing(t *testing.T) {
	pool := poolOf(&provider{}, 2, true)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		a, _ := pool.Get()
		b, _ := pool.Get()
		if _, err := pool.Get(); err != ErrWouldBlock {
			t.Error(err)
		}
		_ = pool.Put(b)
		_ = pool.Put(a)
		pool.Drain(2)
	}))
}

// TestNobodyStealsThePlace (SC4): a place that comes free belongs to the caller that
// has waited longest, also when a value has to be made in it.
func TestNobodyStealsThePlace(t *testing.T) {
	pool := poolOf(&provider{}, 1, false)
	pool.cfg.Clean = func(*context) error { return errNoMemory }
	l, err := pool.Get()
	require.NoError(t, err)
	for range 50 {
		got := make(chan Lease[*context])
		go func() {
			l, err := pool.Wait(time.Now().Add(5 * time.Second))
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		for waiting(pool) == 0 {
			time.Sleep(time.Millisecond)
		}
		require.NoError(t, pool.Put(l))
		require.Equal(t, 1, pool.Drain(1))
		_, err = pool.Get()
		require.ErrorIs(t, err, ErrWouldBlock)
		l = <-got
	}
	require.NoError(t, pool.Put(l))
	pool.Close()
	require.Zero(t, pool.Stats().Live)
}

// TestZeroLease (SC5): what comes with an error is no lease.
func TestZeroLease(t *testing.T) {
	pool := poolOf(&provider{}, 1, false)
	l, err := pool.Get()
	require.NoError(t, err)
	require.ErrorIs(t, pool.Put(Lease[*context]{}), ErrReleased)
	require.Equal(t, 1, pool.Stats().Leased)
	pool.entries[0].gen, l.gen = 1<<32-1, 1<<32-1 // its last one
	require.NoError(t, pool.Put(l))
	_, err = pool.Get()
	require.NoError(t, err)
	require.ErrorIs(t, pool.Put(Lease[*context]{}), ErrReleased)
}

func TestTrimBelowNothing(t *testing.T) {
	pool := poolOf(&provider{}, 1, false)
	l, err := pool.Get()
	require.NoError(t, err)
	require.NoError(t, pool.Put(l))
	require.Equal(t, 1, pool.Trim(-1))
}

// TestPanics (SC3): a place outlives panics of the functions that make, clean and
// destroy its value.
func TestPanics(t *testing.T) {
	p := &provider{}
	pool := poolOf(p, 1, true)
	mistake := func() { panic("a mistake") }
	pool.cfg.Make = func() (*context, error) { mistake(); return nil, nil }
	require.Panics(t, func() { _, _ = pool.Get() })
	require.Equal(t, Stats{Failed: 1}, pool.Stats())

	pool.cfg.Make = p.make
	l, err := pool.Get()
	require.NoError(t, err)
	pool.cfg.Clean = func(*context) error { mistake(); return nil }
	require.NoError(t, pool.Put(l))
	require.Panics(t, func() { pool.Drain(1) })
	require.EqualValues(t, 0, p.live.Load(), "nobody knows what it is")

	pool.cfg.Clean, pool.cfg.Destroy = nil, func(c *context) { p.destroy(c); mistake() }
	l, err = pool.Get()
	require.NoError(t, err)
	require.NoError(t, pool.Put(l))
	require.Panics(t, func() { pool.Trim(0) })
	l, err = pool.Get()
	require.NoError(t, err)
	require.Equal(t, Stats{Live: 1, Leased: 1, Made: 3, Destroyed: 2, Failed: 1}, pool.Stats())
	pool.cfg.Destroy = p.destroy
	require.NoError(t, pool.Put(l))
	pool.Close()
	require.EqualValues(t, 0, p.live.Load())
}
