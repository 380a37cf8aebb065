package verbs

import (
	"fmt"
	"slices"
	"strings"
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
	t     *testing.T
	lib   *libibverbs.Library
	arena *sys.Mapping
	used  uintptr

	mu      sync.Mutex
	calls   []string                  // in order, those that matter
	alive   map[uintptr]string        // objects by address
	freed   map[uintptr]bool          // with their device
	context map[uintptr]uintptr       // that an object is of
	pending map[uintptr][]fakeRequest // of queue pairs, in order
	states  map[uintptr][]fakeModify
	nextQP  uint32
	// devices are what the library finds; the first is embedded, for the tests
	// that need one.
	*fakeDevice
	devices  []*fakeDevice
	linkType uint8
	// failures are what the next calls of a function end with, by name.
	failures map[string][]syscall.Errno
	// postFails makes a post fail at the n-th request of its chain, from 1.
	postFails int
	acks      []*fakeDevice // of events that were taken
	dmabufs   []fakeDmabuf  // registered
	dcQPs     []fakeDC      // made
	notMlx5   bool          // the devices are of another driver
	fakeWire                // queue pairs of all kinds, and what moves
	// gids are the table of addresses; nil: there is none.
	gids []libibverbs.GIDEntry
}

type fakeDC struct {
	qp   uintptr
	attr libibverbs.QPInitAttrEx
	own  libibverbs.Mlx5QPInitAttr
}

type fakeDmabuf struct{ off, n, iova, access uintptr }

// fakeDevice is a device with one port.
type fakeDevice struct {
	name     string
	async    *sys.FD
	notify   *sys.FD
	contexts map[uintptr]bool
	done     []libibverbs.WC
	events   []libibverbs.AsyncEvent
	unacked  int
	armed    bool
	port     uint32 // its state
	removed  bool   // every call to the device ends with EIO
	mute     bool   // its completion queue cannot be asked or armed
	emptied  func() // called when it has said that there is no event
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

func newFake(t *testing.T) *fakeLib { return newFakes(t, 1) }

// newFakes makes a library with n devices, fake0 and so on.
func newFakes(t *testing.T, n int) *fakeLib {
	t.Helper()
	f := makeFakes(t, n)
	t.Cleanup(f.end)
	return f
}

// makeFakes is newFakes for a caller that calls end.
func makeFakes(t *testing.T, n int) *fakeLib {
	t.Helper()
	f := &fakeLib{
		t: t, alive: map[uintptr]string{}, freed: map[uintptr]bool{}, pending: map[uintptr][]fakeRequest{}, context: map[uintptr]uintptr{},
		states: map[uintptr][]fakeModify{}, failures: map[string][]syscall.Errno{},
		linkType: libibverbs.LinkEthernet, nextQP: 100, fakeWire: newFakeWire(),
	}
	var err error
	f.arena, err = sys.MapAnonymous(4 << 20)
	require.NoError(t, err)
	for i := range n {
		d := &fakeDevice{name: fmt.Sprint("fake", i), contexts: map[uintptr]bool{}, port: libibverbs.PortActive}
		d.async, err = sys.NewEvent()
		require.NoError(t, err)
		d.notify, err = sys.NewEvent()
		require.NoError(t, err)
		f.devices = append(f.devices, d)
	}
	f.fakeDevice = f.devices[0]
	f.lib, err = libibverbs.New(fakeLibrary())
	require.NoError(t, err)
	current = f
	return f
}

// end checks that nothing is left of the library's objects, and frees it.
func (f *fakeLib) end() {
	assert.Empty(f.t, f.alive, "left open")
	for _, d := range f.devices {
		assert.Zero(f.t, d.unacked, "events that were not acknowledged")
		require.NoError(f.t, d.async.Close())
		require.NoError(f.t, d.notify.Close())
	}
	require.NoError(f.t, f.arena.Unmap())
}

// of is the device that an object is of.
func (f *fakeLib) of(object uintptr) *fakeDevice {
	if ctx, known := f.context[object]; known {
		object = ctx
	}
	for _, d := range f.devices {
		if d.contexts[object] {
			return d
		}
	}
	require.Fail(f.t, "an object of no device")
	return nil
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
	if config.Device == "" {
		config.Device = "fake0"
	}
	if config.GID == (GIDChoice{}) {
		config.GID = GIDChoice{ByIndex: true, Index: 3}
	}
	if config.NumEndpoints == 0 {
		config.NumEndpoints = 8
	}
	config, err := config.withDefaults()
	require.NoError(f.t, err)
	tr, err := open(f.lib, config)
	if err == nil {
		tr.events.every = 0 // tests do not wait
	}
	return tr, err
}

// forget takes all objects of a device for freed.
func (f *fakeLib) forget(device int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for object := range f.alive {
		if f.of(object) == f.devices[device] {
			delete(f.alive, object)
			f.freed[object] = true
		}
	}
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
func (f *fakeLib) create(name, kind string, of, sizeBytes uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.failure(name); errno != 0 {
		dl.SetErrno(errno)
		return 0
	}
	if kind == "context" && f.devices[of].removed {
		dl.SetErrno(syscall.ENODEV)
		return 0
	}
	f.calls = append(f.calls, name)
	object := f.add(kind, sizeBytes)
	if kind == "context" {
		f.devices[of].contexts[object] = true
		return object
	}
	if ctx, known := f.context[of]; known {
		of = ctx
	}
	f.context[object] = of
	return object
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
	if f.freed[addr] {
		return uintptr(syscall.EIO)
	}
	if errno := f.failure(name); errno != 0 {
		return uintptr(errno)
	}
	f.calls = append(f.calls, name)
	assert.Equal(f.t, kind, f.alive[addr], name)
	delete(f.alive, addr)
	removed := f.of(addr).removed
	if kind == "qp" && !removed && !f.of(addr).mute {
		assert.Empty(f.t, f.pending[addr], "ES6: queue pair destroyed with requests outstanding")
	}
	ctx, known := f.context[addr]
	if !known {
		ctx = addr
	}
	for object, other := range f.alive { // what must be freed before what
		before := map[string]string{"cq": "qp", "pd": "qp srq ah", "context": "cq", "channel": "cq"}
		assert.False(f.t, f.context[object] == ctx && slices.Contains(strings.Fields(before[kind]), other), "%s before %s", kind, other)
		assert.False(f.t, kind == "srq" && other == "qp" && f.queues[object] != nil && f.queues[object].srq == addr, "%s before %s", kind, other)
	}
	f.destroyed(addr)
	if removed {
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
	f.of(uintptr(qp)).push(f.t, libibverbs.WC{WRID: list[0].id, Status: status, QPNum: qp.Num()})
}

func (f *fakeLib) push(wc libibverbs.WC) { f.fakeDevice.push(f.t, wc) }

func (d *fakeDevice) push(t *testing.T, wc libibverbs.WC) {
	d.done = append(d.done, wc)
	if d.armed {
		d.armed = false
		require.NoError(t, sys.Signal(d.notify))
	}
}

func (f *fakeLib) modify(qp, attr uintptr, mask uint32) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := fakeModify{*dl.At[libibverbs.QPAttr](attr), mask}
	f.calls = append(f.calls, fmt.Sprintf("modify_qp %d", m.attr.QPState))
	assert.Equal(f.t, "qp", f.alive[qp])
	if m.attr.QPState == libibverbs.QPStateReset {
		assert.Equal(f.t, fakeInitiator, f.queues[qp].kind, "ES7: never RESET")
		assert.Empty(f.t, f.pending[qp], "RESET with requests outstanding")
	}
	f.states[qp] = append(f.states[qp], m)
	if d := f.of(qp); m.attr.QPState == libibverbs.QPStateErr && !d.removed {
		for _, r := range f.pending[qp] {
			d.push(f.t, libibverbs.WC{WRID: r.id, Status: libibverbs.WCWRFlushErr})
		}
		delete(f.pending, qp)
	}
	errno := f.failure("modify_qp")
	if errno == 0 {
		errno = f.moveTo(f.queues[qp], m)
	}
	return uintptr(errno)
}

// post takes a chain of either kind: they begin alike.
func (f *fakeLib) post(qp, wr, bad uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.Contains(f.t, []string{"qp", "srq"}, f.alive[qp])
	if f.moves {
		return f.postSends(qp, wr)
	}
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

// mute makes a device's completion queue one that cannot be asked, or not.
func (f *fakeLib) mute(device int, mute bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[device].mute = mute
}

func (f *fakeLib) poll(cq, n, wcs uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.of(cq)
	if d.mute {
		return ^uintptr(0)
	}
	k := min(int(n), len(d.done))
	for i, wc := range d.done[:k] {
		*dl.At[libibverbs.WC](wcs + uintptr(i)*unsafe.Sizeof(wc)) = wc
	}
	d.done = d.done[k:]
	return uintptr(k)
}

func (f *fakeLib) arm(cq uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.of(cq)
	if d.mute {
		return uintptr(syscall.EIO)
	}
	d.armed = true
	return 0
}
