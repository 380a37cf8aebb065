package verbs

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// TestES15EveryEvent: each type is acknowledged first, changes state or is
// counted, and is reported.
func TestES15EveryEvent(t *testing.T) {
	for kind := range libibverbs.NumEventTypes + 2 { // also newer ones
		t.Run(fmt.Sprint(kind), func(t *testing.T) { testEvent(t, kind) })
	}
}

func testEvent(t *testing.T, kind libibverbs.EventType) {
	failed := []libibverbs.EventType{
		libibverbs.EventQPFatal, libibverbs.EventQPReqErr, libibverbs.EventQPAccessErr, libibverbs.EventPathMigErr,
	}
	lost := []libibverbs.EventType{libibverbs.EventDeviceFatal, libibverbs.EventCQErr, libibverbs.EventPortErr}
	f := newFake(t)
	tr := f.open(Config{})
	a, _ := connected(t, tr, 4)
	postRecv(t, a, transport.RecvRequest{ID: 1})
	event := libibverbs.AsyncEvent{Type: kind, Element: uintptr(a.(*endpoint).qp)}
	want := transport.Event{Kind: transport.EventOther}
	switch {
	case slices.Contains(failed, kind):
		want = transport.Event{Kind: transport.EventEndpointFailed, Endpoint: a.ID()}
	case slices.Contains(lost, kind):
		want.Kind = transport.EventDeviceDown
	}
	ofPort := []libibverbs.EventType{
		libibverbs.EventPortErr, libibverbs.EventPortActive, libibverbs.EventLIDChange,
		libibverbs.EventGIDChange, libibverbs.EventClientReregister,
	}
	if slices.Contains(ofPort, kind) {
		event.Element = 1
	}
	f.removed = kind == libibverbs.EventDeviceFatal || kind == libibverbs.EventCQErr
	f.calls = nil
	f.raise(event)
	require.NoError(t, tr.Wait(time.Minute))
	var events [4]transport.Event
	require.Positive(t, tr.PollEvents(events[:]), kind)
	assert.NotEmpty(t, events[0].Detail)
	events[0].Detail = ""
	assert.Equal(t, want, events[0], kind)
	assert.Equal(t, "ack", f.calls[0], kind)
	assert.EqualValues(t, 1, tr.EventCounts().ByType[min(kind, libibverbs.NumEventTypes)])

	broken := want.Kind != transport.EventOther
	assert.Equal(t, broken, a.State() == transport.StateError, kind)
	if broken {
		assert.Equal(t, transport.StatusFlushed, await(t, tr, 1)[1].Status)
	}
}

func TestPortComesBack(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{})
	kinds := func() (kinds []transport.EventKind) {
		var events [8]transport.Event
		for _, e := range events[:tr.PollEvents(events[:])] {
			kinds = append(kinds, e.Kind)
		}
		return kinds
	}
	down, up := libibverbs.AsyncEvent{Type: libibverbs.EventPortErr, Element: 1}, libibverbs.AsyncEvent{Type: libibverbs.EventPortActive, Element: 1}
	elsewhere := libibverbs.AsyncEvent{Type: libibverbs.EventPortErr, Element: 2}
	f.raise(elsewhere)
	f.raise(down)
	f.raise(down)
	assert.Equal(t, []transport.EventKind{transport.EventOther, transport.EventDeviceDown, transport.EventOther}, kinds())
	_, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	require.ErrorIs(t, err, transport.ErrNoResource)
	f.raise(up)
	assert.Equal(t, []transport.EventKind{transport.EventDeviceUp}, kinds())
	newEndpoint(t, tr, 1)
}

// TestPortHasItsAddressLater: a port that becomes active before it has an
// address is usable from the change of addresses on; one that is not active
// is not made usable by one.
func TestPortHasItsAddressLater(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{})
	change := func(kind libibverbs.EventType) transport.Event {
		f.raise(libibverbs.AsyncEvent{Type: kind, Element: 1})
		var events [2]transport.Event
		require.Equal(t, 1, tr.PollEvents(events[:]))
		return events[0]
	}
	f.port = libibverbs.PortActive - 1
	require.Equal(t, transport.EventDeviceDown, change(libibverbs.EventPortErr).Kind)
	require.Equal(t, transport.EventOther, change(libibverbs.EventGIDChange).Kind)
	f.port = libibverbs.PortActive
	f.failures["query_gid"] = []syscall.Errno{syscall.EINVAL}
	e := change(libibverbs.EventPortActive)
	require.Equal(t, transport.EventOther, e.Kind)
	require.Contains(t, e.Detail, "ibv_query_gid")
	require.Equal(t, transport.EventDeviceUp, change(libibverbs.EventGIDChange).Kind)
	newEndpoint(t, tr, 1)
}

// TestLatestStateIsNotDropped: whatever was not taken, the last report of the device is
// there.
func TestLatestStateIsNotDropped(t *testing.T) {
	t.Run("down", func(t *testing.T) { testLatest(t, libibverbs.EventPortErr, transport.EventDeviceDown) })
	t.Run("up", func(t *testing.T) { testLatest(t, libibverbs.EventPortActive, transport.EventDeviceUp) })
}

func testLatest(t *testing.T, last libibverbs.EventType, want transport.EventKind) {
	f := newFake(t)
	tr := f.open(Config{})
	for range 100 {
		f.raise(libibverbs.AsyncEvent{Type: libibverbs.EventSMChange})
	}
	for range 100 {
		f.raise(libibverbs.AsyncEvent{Type: libibverbs.EventPortErr, Element: 1})
		f.raise(libibverbs.AsyncEvent{Type: libibverbs.EventPortActive, Element: 1})
	}
	f.raise(libibverbs.AsyncEvent{Type: last, Element: 1})
	events := make([]transport.Event, 1000)
	events = events[:tr.PollEvents(events)]
	require.LessOrEqual(t, len(events), numOtherEvents)
	seen := transport.EventKind(0)
	for _, e := range events {
		if e.Kind != transport.EventOther {
			seen = e.Kind
		}
	}
	assert.Equal(t, want, seen)
}

func TestEventsAreBounded(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{})
	for range 1000 {
		f.raise(libibverbs.AsyncEvent{Type: libibverbs.EventSMChange})
	}
	tr.takeEvents()
	assert.EqualValues(t, 1000-numOtherEvents, tr.EventCounts().NumDropped)
	// There is still room for every endpoint.
	a, _ := connected(t, tr, 1)
	f.raise(libibverbs.AsyncEvent{Type: libibverbs.EventQPFatal, Element: uintptr(a.(*endpoint).qp)})
	tr.takeEvents()
	events := make([]transport.Event, 1000)
	events = events[:tr.PollEvents(events)]
	require.Len(t, events, numOtherEvents+1)
	assert.Equal(t, transport.EventEndpointFailed, events[numOtherEvents].Kind)
}

// TestDeviceIsRemoved pulls the card: the event may come or be lost. What was
// outstanding is returned after the queue pair was destroyed, not before.
func TestDeviceIsRemoved(t *testing.T) {
	t.Run("told", func(t *testing.T) { testRemoved(t, true) })
	t.Run("not told", func(t *testing.T) { testRemoved(t, false) })
}

func testRemoved(t *testing.T, announced bool) {
	f := newFake(t)
	tr, err := f.tryOpen(Config{})
	require.NoError(t, err)
	a, b := connected(t, tr, 8)
	region, err := tr.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	postRecv(t, b, transport.RecvRequest{ID: 1}, transport.RecvRequest{ID: 2})
	post(t, a, write(3, region), write(4, region), write(5, region))
	late := f.pending[uintptr(a.(*endpoint).qp)][1].id
	f.finish(a.(*endpoint).qp, libibverbs.WCSuccess)
	assert.Equal(t, transport.StatusOK, await(t, tr, 1)[3].Status)

	f.calls, f.removed = nil, true
	require.NoError(t, sys.Signal(f.async))
	if announced {
		f.raise(libibverbs.AsyncEvent{Type: libibverbs.EventDeviceFatal})
	}
	require.NoError(t, tr.Wait(time.Minute))
	f.push(libibverbs.WC{WRID: late}) // too late
	all := await(t, tr, 4)
	for _, id := range []uint64{1, 2, 4, 5} {
		assert.Equal(t, transport.StatusFlushed, all[id].Status)
	}
	assert.Len(t, slices.DeleteFunc(slices.Clone(f.calls), func(c string) bool { return c != "destroy_qp" }), 2)
	assert.EqualValues(t, 1, tr.NumStrays())
	postRecv(t, a, transport.RecvRequest{ID: 6})
	assert.Equal(t, transport.StatusFlushed, await(t, tr, 1)[6].Status)

	kinds := map[transport.EventKind]int{}
	var events [8]transport.Event
	for _, e := range events[:tr.PollEvents(events[:])] {
		kinds[e.Kind]++
	}
	assert.Equal(t, map[transport.EventKind]int{transport.EventDeviceDown: 1, transport.EventEndpointFailed: 2}, kinds)
	_, err = tr.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	require.ErrorIs(t, err, transport.ErrNoResource)
	// The descriptors of the device are readable for ever; Wait sleeps.
	require.NoError(t, tr.Wait(0))
	begin := time.Now()
	require.NoError(t, tr.Wait(20*time.Millisecond))
	assert.GreaterOrEqual(t, time.Since(begin), 20*time.Millisecond)

	closeEndpoint(t, tr, a)
	closeEndpoint(t, tr, b)
	require.NoError(t, region.Close())
	require.NoError(t, tr.Close())
	f.alive = nil // the kernel has freed it
}
