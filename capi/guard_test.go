package main

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/wire"
)

// TestGuard: a panic becomes a status, and only its own buffer is unusable.
func TestGuard(t *testing.T) {
	hurt, other := &buffer{id: 1}, &buffer{id: 2}
	require.Equal(t, statusOf(errPanic), guard(hurt, func() error { panic("boom") }))
	require.ErrorIs(t, hurt.poisoned(), errPanic)
	require.ErrorContains(t, hurt.poisoned(), "boom")
	require.Equal(t, statusOf(errPanic), guard(hurt, func() error { return nil }), "a poisoned buffer takes no calls")
	require.Zero(t, guard(other, func() error { return nil }))
	require.Equal(t, statusOf(errPanic), guard(nil, func() error { panic("boom") }))
}

// TestCloseWipesKeys: a closed buffer holds no key.
func TestCloseWipesKeys(t *testing.T) {
	b := &buffer{}
	require.NoError(t, b.close(), "without keys")
	b.open.Keys = wire.GenerateKeyring()
	id := b.open.Keys.Current()
	require.True(t, b.open.Keys.Has(id))
	require.NoError(t, b.close())
	require.False(t, b.open.Keys.Has(id))
}

// TestStatusOfWrapped: a closed buffer stays closed whatever its cause.
func TestStatusOfWrapped(t *testing.T) {
	require.Equal(t, statusOf(ep.ErrClosed), statusOf(wrapped{ep.ErrClosed, ep.ErrFenced}))
	require.NotEqual(t, statusOf(ep.ErrClosed), statusOf(ep.ErrFenced))
}

// TestStatusOfUnreachable: the status is the same if a carrier's deadline was the cause.
func TestStatusOfUnreachable(t *testing.T) {
	err := asUnreachable(fmt.Errorf("%w: %w", endpoint.ErrUnreachable, os.ErrDeadlineExceeded))
	require.Equal(t, statusOf(endpoint.ErrUnreachable), statusOf(err))
	require.NotEqual(t, statusOf(os.ErrDeadlineExceeded), statusOf(err))
	require.ErrorContains(t, err, "not reachable")
	require.NoError(t, asUnreachable(nil))
}

// TestOneLine: the text of several errors is one line, which C reads to its end.
func TestOneLine(t *testing.T) {
	both := errors.Join(errors.New("a"), errors.New("open b\x00c"))
	require.Equal(t, `a; open b\0c`, oneLine(both.Error()))
}

type wrapped []error

func (wrapped) Error() string     { return "several" }
func (w wrapped) Unwrap() []error { return w }

// TestTable: ids are never reused, and each kind of mistake is named.
func TestTable(t *testing.T) {
	tab := newTable[string]("thing")
	a := tab.add("a")
	_, err := tab.take(a)
	require.NoError(t, err)
	b := tab.add("b")
	require.NotEqual(t, a, b)
	_, err = tab.get(a)
	require.ErrorIs(t, err, errHandle)
	require.ErrorContains(t, err, "thing 1 was closed")
	_, err = tab.get(99)
	require.ErrorContains(t, err, "there never was a thing 99")
	_, err = tab.take(a)
	require.ErrorIs(t, err, errHandle)
}

func TestHandles(t *testing.T) {
	for _, c := range []struct{ buffer, op uint64 }{{1, 0}, {7, 12345}, {1<<20 - 1, 1<<44 - 3}} {
		buffer, op, err := unpackHandle(packHandle(c.buffer, c.op))
		require.NoError(t, err)
		require.Equal(t, c.buffer, buffer)
		require.Equal(t, c.op, op)
	}
	for _, garbage := range []uint64{0, 5, 1 << opBits} {
		_, _, err := unpackHandle(garbage)
		require.ErrorIs(t, err, errHandle)
	}
}
