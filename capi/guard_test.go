package main

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/node"
)

// newBuffer makes a buffer as mw_buffer_create does.
func newBuffer(t *testing.T, cfg node.Config) *buffer {
	made, err := node.New(cfg)
	require.NoError(t, err)
	b := &buffer{Buffer: made, id: buffers.next(), tensors: tensorsOf(&cfg)}
	buffers.put(b.id, b)
	return b
}

// TestGuard: a panic becomes a status, and only its own buffer is unusable.
func TestGuard(t *testing.T) {
	hurt, other := newBuffer(t, node.Config{NumRanks: 1}), newBuffer(t, node.Config{NumRanks: 1})
	require.Equal(t, statusOf(errPanic), guard(hurt, func() error { panic("boom") }))
	require.ErrorIs(t, hurt.poisoned(), errPanic)
	require.ErrorContains(t, hurt.poisoned(), "boom")
	require.Equal(t, statusOf(errPanic), guard(hurt, func() error { return nil }), "a poisoned buffer takes no calls")
	require.Zero(t, guard(other, func() error { return nil }))
	require.Equal(t, statusOf(errPanic), guard(nil, func() error { panic("boom") }))
	require.Zero(t, on(buffers, other.id, func(*buffer) error { return nil }))
	require.Equal(t, statusOf(errPanic), on(buffers, other.id, func(*buffer) error { panic("boom") }))
	require.ErrorIs(t, other.poisoned(), errPanic)
	require.Equal(t, statusOf(errPanic), on(buffers, other.id, func(*buffer) error { return nil }))
	require.Zero(t, mwiBufferClose(hurt.id))
	require.Zero(t, mwiBufferClose(other.id))
	require.Equal(t, statusOf(errHandle), mwiBufferClose(other.id))
}

// TestFieldsAreNamedAsInTheHeader: an error about a configuration names the field of the
// struct.
func TestFieldsAreNamedAsInTheHeader(t *testing.T) {
	_, err := node.New(node.Config{NumRanks: 1, Hosts: node.Hosts{RingBytes: 5}})
	require.ErrorContains(t, err, "invalid argument: ring_bytes is 5, allowed ")
	require.Contains(t, inWords(err), "invalid argument: config->ring_bytes is 5, allowed ")
	require.Equal(t, statusOf(ep.ErrInvalid), statusOf(err))
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
	for _, c := range []struct{ buffer, handle uint64 }{{1, 1}, {7, 12345}, {1<<20 - 1, 1<<44 - 1}} {
		buffer, handle, err := unpackHandle(packHandle(c.buffer, c.handle))
		require.NoError(t, err)
		require.Equal(t, c.buffer, buffer)
		require.Equal(t, c.handle, handle)
	}
	for _, garbage := range []uint64{0, 5, 1 << opBits} {
		_, _, err := unpackHandle(garbage)
		require.ErrorIs(t, err, errHandle)
	}
}
