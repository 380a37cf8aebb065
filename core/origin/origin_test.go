package origin

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func debug(t *testing.T, on bool) {
	was := debugging
	debugging = on
	t.Cleanup(func() { debugging = was })
}

func nativeCall() error { return Mark(io.ErrUnexpectedEOF) }

// TestMark: however it is wrapped, the place of the call is found, and the error is the same.
func TestMark(t *testing.T) {
	debug(t, true)
	err := fmt.Errorf("connect: %w", errors.Join(io.ErrNoProgress, nativeCall()))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Contains(t, err.Error(), io.ErrUnexpectedEOF.Error())
	require.NotContains(t, err.Error(), "origin_test.go")
	require.Contains(t, Of(err), "origin.nativeCall")
	require.Contains(t, Of(err), "origin_test.go:")
	require.NoError(t, Mark(nil))
}

// TestFirstMarkCounts: one that is given on the way says nothing of the beginning.
func TestFirstMarkCounts(t *testing.T) {
	debug(t, true)
	require.Contains(t, Of(Mark(fmt.Errorf("again: %w", nativeCall()))), "origin.nativeCall")
}

// TestNotDebugging: nothing is kept, and nothing allocated.
func TestNotDebugging(t *testing.T) {
	debug(t, false)
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = nativeCall() }))
	require.Equal(t, io.ErrUnexpectedEOF, nativeCall())
	require.Empty(t, Of(nativeCall()))
	require.Empty(t, Of(nil))
}

func panics() { panic("no such rank") }

func TestMarkPanic(t *testing.T) {
	debug(t, false)
	defer func() {
		err := MarkPanic(fmt.Errorf("%v", recover()))
		require.EqualError(t, err, "no such rank")
		require.Contains(t, Of(err), "origin.panics")
	}()
	panics()
}
