package verbs

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
)

// fakeLib is a libibverbs for what no real device does when asked. It moves no
// bytes: tests say how each work request ends. It is reached by C addresses,
// so all of the carrier runs as with the real one.
type fakeLib struct {
	t      *testing.T
	lib    *libibverbs.Library
	arena  *sys.Mapping
	used   uintptr
	async  *sys.FD
	notify *sys.FD

	mu       sync.Mutex
	calls    []string                  // in order, those that matter
	alive    map[uintptr]string        // objects by address
	pending  map[uintptr][]fakeRequest // of queue pairs, in order
	states   map[uintptr][]fakeModify
	done     []libibverbs.WC
	events   []libibverbs.AsyncEvent
	unacked  int
	armed    bool
	nextQP   uint32
	linkType uint8
	// failures are what the next calls of a function end with, by name.
	failures map[string][]syscall.Errno
	// postFails makes a post fail at the n-th request of its chain, from 1.
	postFails int
	removed   bool // every call to the device ends with EIO
	// ports are the states of the devices' ports; active where there is none.
	ports map[string]uint32
}

type fakeRequest struct {
	id   uint64
	sges []libibverbs.SGE
}

type fakeModify struct {
	attr libibverbs.QPAttr
	mask uint32
}

// current is the fake of the test that runs: the addresses are made once.
var current *fakeLib

func newFake(t *testing.T) *fakeLib {
	t.Helper()
	f := &fakeLib{
		t: t, alive: map[uintptr]string{}, pending: map[uintptr][]fakeRequest{},
		states: map[uintptr][]fakeModify{}, failures: map[string][]syscall.Errno{}, ports: map[string]uint32{},
		linkType: libibverbs.LinkEthernet, nextQP: 100,
	}
	var err error
	f.arena, err = sys.MapAnonymous(1 << 20)
	require.NoError(t, err)
	f.async, err = sys.NewEvent()
	require.NoError(t, err)
	f.notify, err = sys.NewEvent()
	require.NoError(t, err)
	f.lib, err = libibverbs.New(fakeLibrary())
	require.NoError(t, err)
	current = f
	t.Cleanup(func() {
		assert.Empty(t, f.alive, "left open")
		assert.Zero(t, f.unacked, "events that were not acknowledged")
		require.NoError(t, f.async.Close())
		require.NoError(t, f.notify.Close())
		require.NoError(t, f.arena.Unmap())
	})
	return f
}

// open opens the fake device.
func (f *fakeLib) open(config Config) *Transport {
	f.t.Helper()
	tr, err := f.tryOpen(config)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, tr.Close()) })
	return tr
}

func (f *fakeLib) tryOpen(config Config) (*Transport, error) {
	index := 3
	config.Device, config.GIDIndex = "fake0", &index
	if config.NumEndpoints == 0 {
		config.NumEndpoints = 8
	}
	config, err := config.withDefaults()
	require.NoError(f.t, err)
	return open(f.lib, config)
}

// add makes an object of a kind in the arena.
func (f *fakeLib) add(kind string, sizeBytes uintptr) uintptr {
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(f.arena.Bytes()))) + f.used
	f.used += (sizeBytes + 63) &^ 63
	require.Less(f.t, f.used, uintptr(len(f.arena.Bytes())))
	f.alive[addr] = kind
	return addr
}

// create is add for functions that may be told to fail.
func (f *fakeLib) create(name, kind string, sizeBytes uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.failure(name); errno != 0 {
		dl.SetErrno(errno)
		return 0
	}
	f.calls = append(f.calls, name)
	return f.add(kind, sizeBytes)
}

func (f *fakeLib) portState(device string) uint32 {
	if state, set := f.ports[device]; set {
		return state
	}
	return libibverbs.PortActive
}

func (f *fakeLib) failure(name string) syscall.Errno {
	list := f.failures[name]
	if len(list) == 0 {
		return 0
	}
	f.failures[name] = list[1:]
	return list[0]
}

// destroy frees an object, which must be of that kind.
func (f *fakeLib) destroy(name, kind string, addr uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
	assert.Equal(f.t, kind, f.alive[addr], name)
	delete(f.alive, addr)
	if kind == "qp" && !f.removed {
		assert.Empty(f.t, f.pending[addr], "ES6: queue pair destroyed with requests outstanding")
	}
	for _, other := range f.alive { // what must be freed before what
		before := map[string]string{"cq": "qp", "pd": "qp", "context": "cq", "channel": "cq"}
		assert.False(f.t, before[kind] == other, "%s before %s", kind, other)
	}
	if f.removed {
		return uintptr(syscall.EIO)
	}
	return 0
}

// finish ends the oldest request of a queue pair.
func (f *fakeLib) finish(qp libibverbs.QP, status libibverbs.WCStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.pending[uintptr(qp)]
	require.NotEmpty(f.t, list)
	f.pending[uintptr(qp)] = list[1:]
	f.push(libibverbs.WC{WRID: list[0].id, Status: status, QPNum: qp.Num()})
}

func (f *fakeLib) push(wc libibverbs.WC) {
	f.done = append(f.done, wc)
	if f.armed {
		f.armed = false
		require.NoError(f.t, sys.Signal(f.notify))
	}
}

// raise raises an asynchronous event.
func (f *fakeLib) raise(event libibverbs.AsyncEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, event)
	require.NoError(f.t, sys.Signal(f.async))
}

func (f *fakeLib) modify(qp, attr uintptr, mask uint32) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := fakeModify{*dl.At[libibverbs.QPAttr](attr), mask}
	f.calls = append(f.calls, fmt.Sprintf("modify_qp %d", m.attr.QPState))
	assert.Equal(f.t, "qp", f.alive[qp])
	assert.NotEqual(f.t, uint32(libibverbs.QPStateReset), m.attr.QPState, "ES7: never RESET")
	f.states[qp] = append(f.states[qp], m)
	if m.attr.QPState == libibverbs.QPStateErr && !f.removed {
		for _, r := range f.pending[qp] {
			f.push(libibverbs.WC{WRID: r.id, Status: libibverbs.WCWRFlushErr})
		}
		delete(f.pending, qp)
	}
	return uintptr(f.failure("modify_qp"))
}

// post takes a chain of either kind: they begin alike.
func (f *fakeLib) post(qp, wr, bad uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.Equal(f.t, "qp", f.alive[qp])
	for n := 1; wr != 0; n++ {
		if n == f.postFails {
			*dl.At[uintptr](bad) = wr
			return uintptr(syscall.EINVAL)
		}
		head := dl.At[libibverbs.RecvWR](wr)
		r := fakeRequest{id: head.WRID}
		for i := range uintptr(head.NumSGE) {
			r.sges = append(r.sges, *dl.At[libibverbs.SGE](head.SGList + i*sgeBytes))
		}
		f.pending[qp] = append(f.pending[qp], r)
		wr = head.Next
	}
	return 0
}

func (f *fakeLib) poll(n, wcs uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := min(int(n), len(f.done))
	for i, wc := range f.done[:k] {
		*dl.At[libibverbs.WC](wcs + uintptr(i)*unsafe.Sizeof(wc)) = wc
	}
	f.done = f.done[k:]
	return uintptr(k)
}

func (f *fakeLib) nextEvent(into uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) == 0 {
		errno := syscall.EAGAIN
		if f.removed {
			errno = syscall.EIO
		}
		dl.SetErrno(errno)
		return ^uintptr(0)
	}
	*dl.At[libibverbs.AsyncEvent](into) = f.events[0]
	f.events = f.events[1:]
	f.unacked++
	if len(f.events) == 0 && !f.removed {
		require.NoError(f.t, sys.Unsignal(f.async))
	}
	return 0
}

func (f *fakeLib) nextCompletionEvent(cq uintptr) uintptr {
	ready, err := sys.WaitReadable([]*sys.FD{f.notify}, timeZero)
	if err != nil || len(ready) == 0 {
		dl.SetErrno(syscall.EAGAIN)
		return ^uintptr(0)
	}
	require.NoError(f.t, sys.Unsignal(f.notify))
	f.mu.Lock()
	defer f.mu.Unlock()
	for addr, kind := range f.alive {
		if kind == "cq" {
			*dl.At[uintptr](cq) = addr
		}
	}
	return 0
}
