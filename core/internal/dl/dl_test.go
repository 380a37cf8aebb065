package dl

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpenListsAllThatWasTried(t *testing.T) {
	_, err := Open("libnosuchthing.so.7", "", "/nowhere/libother.so")
	require.ErrorIs(t, err, ErrNoLibrary)
	assert.ErrorContains(t, err, "libnosuchthing.so.7 (")
	assert.ErrorContains(t, err, "/nowhere/libother.so (")
}

func TestOpenTakesTheFirstThatOpens(t *testing.T) {
	l, err := Open("libnosuchthing.so.7", "libc.so.6")
	require.NoError(t, err)
	assert.Equal(t, "libc.so.6", l.Name())
	strlen, err := l.Lookup("strlen")
	require.NoError(t, err)
	text := []byte("four\x00")
	assert.EqualValues(t, 4, strlen.Call(uintptr(unsafe.Pointer(&text[0]))))

	_, err = l.Lookup("no_such_function")
	require.ErrorIs(t, err, ErrNoSymbol)
	assert.ErrorContains(t, err, "no_such_function in libc.so.6")
}

// TestOpenLoaded: what the process has, and nothing else, though it could be
// opened.
func TestOpenLoaded(t *testing.T) {
	l, err := OpenLoaded("libnosuchthing.so.7", "libc.so.6")
	require.NoError(t, err)
	assert.Equal(t, "libc.so.6", l.Name())
	_, err = l.Lookup("strlen")
	require.NoError(t, err)
	_, err = OpenLoaded("libnosuchthing.so.7", "libanl.so.1")
	require.ErrorIs(t, err, ErrNoLibrary)
	assert.ErrorContains(t, err, "not open: libnosuchthing.so.7, libanl.so.1")
}

func TestLookupAll(t *testing.T) {
	l, err := Open("libc.so.6")
	require.NoError(t, err)
	var abs, none Func
	require.NoError(t, l.LookupAll(map[string]*Func{"abs": &abs}))
	assert.NotZero(t, abs)
	assert.ErrorIs(t, l.LookupAll(map[string]*Func{"no_such_function": &none}), ErrNoSymbol)
}

func TestErrno(t *testing.T) {
	l, err := Open("libc.so.6")
	require.NoError(t, err)
	closeFD, err := l.Lookup("close")
	require.NoError(t, err)
	r, errno := closeFD.CallErrno(^uintptr(0))
	assert.EqualValues(t, -1, int32(r))
	assert.Equal(t, syscall.EBADF, errno)
}

// TestErrnoIsOfTheThread has many goroutines fail in different ways while they
// are moved between threads.
func TestErrnoIsOfTheThread(t *testing.T) {
	lib := Fake(map[string]any{"fail": func(code uintptr) uintptr {
		runtime.Gosched()
		SetErrno(syscall.Errno(code))
		return 0
	}})
	fail, err := lib.Lookup("fail")
	require.NoError(t, err)
	var all sync.WaitGroup
	for g := range uintptr(8) {
		all.Go(func() {
			for range 200 {
				_, errno := fail.CallErrno(g + 1)
				if errno != syscall.Errno(g+1) {
					t.Errorf("errno %d, want %d", errno, g+1)
					return
				}
				runtime.Gosched()
			}
		})
	}
	all.Wait()
}

func TestFake(t *testing.T) {
	lib := Fake(map[string]any{
		"add": func(a, b uintptr) uintptr { return a + b },
	})
	add, err := lib.Lookup("add")
	require.NoError(t, err)
	assert.EqualValues(t, 5, add.Call(2, 3))
	_, err = lib.Lookup("sub")
	assert.ErrorIs(t, err, ErrNoSymbol)
}

func TestString(t *testing.T) {
	l, err := Open("libc.so.6")
	require.NoError(t, err)
	strerror, err := l.Lookup("strerror")
	require.NoError(t, err)
	assert.Equal(t, "Success", String(strerror.Call(0)))
	assert.Empty(t, String(0))
}

func TestHotAllocatesNothing(t *testing.T) {
	l, err := Open("libc.so.6")
	require.NoError(t, err)
	abs, err := l.Lookup("abs")
	require.NoError(t, err)
	hot := abs.Hot()
	var sum uintptr
	assert.Zero(t, testing.AllocsPerRun(1000, func() { sum += hot.Call(7, 0, 0) }))
	assert.Positive(t, sum)
}
