package verbs

import (
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

var (
	portDown = libibverbs.AsyncEvent{Type: libibverbs.EventPortErr, Element: 1}
	portUp   = libibverbs.AsyncEvent{Type: libibverbs.EventPortActive, Element: 1}
	oneEach  = transport.EndpointSpec{SendDepth: 4, RecvDepth: 4}
)

// group opens the fake's devices as one transport.
func (f *fakeLib) group(config Config) *Group {
	f.t.Helper()
	g, err := f.tryGroup(config)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, g.Close()) })
	return g
}

func (f *fakeLib) tryGroup(config Config) (*Group, error) {
	config.GID = GIDChoice{ByIndex: true, Index: 3}
	config.NumEndpoints = 8
	config, err := config.withDefaults()
	require.NoError(f.t, err)
	var nics []NIC
	for _, d := range f.devices {
		nics = append(nics, NIC{d.name, 1})
	}
	return openGroup(f.lib, config, nics)
}

// groupEndpoint makes one, which is closed at the end.
func groupEndpoint(t *testing.T, g *Group) *endpoint {
	t.Helper()
	e, err := g.NewEndpoint(oneEach)
	require.NoError(t, err)
	t.Cleanup(func() { closeOnGroup(t, g, e) })
	return e.(*endpoint)
}

func closeOnGroup(t *testing.T, g *Group, e transport.Endpoint) {
	t.Helper()
	require.NoError(t, e.Retire())
	var done [64]transport.Completion
	for until := time.Now().Add(testTimeout); ; {
		err := e.Close()
		if err == nil {
			return
		}
		require.ErrorIs(t, err, transport.ErrBusy)
		require.True(t, time.Now().Before(until))
		_, err = g.Poll(done[:])
		require.NoError(t, err)
	}
}

// groupEvents are the kinds of all reports that are there.
func groupEvents(g *Group) (kinds []transport.EventKind) {
	g.each(func(t *Transport) { t.events.every = 0 }) // tests do not wait
	return dueEvents(g)
}

// dueEvents asks only the ports that are due.
func dueEvents(g *Group) (kinds []transport.EventKind) {
	var events [16]transport.Event
	for _, e := range events[:g.PollEvents(events[:])] {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// TestPortFailsOver: a port that is lost takes its endpoints along and no
// other; new ones go to the next port, and come back when it is active again.
func TestPortFailsOver(t *testing.T) {
	f := newFakes(t, 3)
	g := f.group(Config{})
	region, err := g.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, region.Close()) })
	require.Equal(t, "fake0/1", g.Device())
	require.Empty(t, g.Remarks())
	a, b := groupEndpoint(t, g), groupEndpoint(t, g)
	join(t, a, b)
	postRecv(t, b, transport.RecvRequest{ID: 1, Local: whole(region)})

	f.raiseOn(0, portDown)
	require.NoError(t, g.Wait(time.Minute))
	require.Equal(t, []transport.EventKind{transport.EventOther, transport.EventEndpointFailed, transport.EventEndpointFailed}, groupEvents(g), "others may work")
	require.Equal(t, transport.StateError, a.State())
	var done [4]transport.Completion
	n, err := g.Poll(done[:])
	require.NoError(t, err)
	require.Equal(t, []transport.Completion{{ID: 1, Endpoint: b.ID(), Op: transport.OpRecv, Status: transport.StatusFlushed, Vendor: 5 << 16}}, done[:n])

	c, d := groupEndpoint(t, g), groupEndpoint(t, g)
	require.Equal(t, "fake1/1", c.Device())
	require.Equal(t, "fake1/1", g.Device())
	require.NotEqual(t, a.ID(), c.ID())
	join(t, c, d)
	remote := transport.RemoteFor(region, d)
	require.EqualValues(t, 1, remote.Key>>32, "the key of the second port")
	post(t, c, transport.SendRequest{ID: 2, Op: transport.OpWrite, Local: whole(region), Remote: remote})
	require.Equal(t, remote.Key, region.Remote().Key)
	f.finish(c.qp, libibverbs.WCSuccess)
	n, err = g.Poll(done[:])
	require.NoError(t, err)
	require.Equal(t, []transport.Completion{{ID: 2, Endpoint: c.ID(), Op: transport.OpWrite, NumBytes: 64}}, done[:n])
	require.Equal(t, "fake0/1 is not usable (1 failures): fake0/1: port is down", g.Remarks())

	f.raiseOn(0, portUp)
	f.raiseOn(1, portDown)
	require.NoError(t, g.Wait(time.Minute))
	require.ElementsMatch(t, []transport.EventKind{
		transport.EventDeviceUp, transport.EventOther, transport.EventEndpointFailed, transport.EventEndpointFailed,
	}, groupEvents(g), "not all are down")
	e := groupEndpoint(t, g)
	require.Equal(t, "fake0/1", e.Device())
	require.Equal(t, []NICState{
		{NIC: NIC{"fake0", 1}, Open: true, Usable: true, NumFailures: 1, NumEndpoints: 3, DC: DC{Why: "not asked for"}},
		{NIC: NIC{"fake1", 1}, Open: true, Why: "fake1/1: port is down", NumFailures: 1, NumEndpoints: 2, DC: DC{Why: "not asked for"}},
		{NIC: NIC{"fake2", 1}},
	}, g.NICs())
	require.Equal(t, "fake0/1 is usable again after 1 failures; fake1/1 is not usable (1 failures): fake1/1: port is down", g.Remarks())
}

// TestKeyOfAnotherPort: a key that the connection's port does not know is
// refused here, with words, and not by the peer's device.
func TestKeyOfAnotherPort(t *testing.T) {
	f := newFakes(t, 2)
	g := f.group(Config{})
	region, err := g.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	a, b := groupEndpoint(t, g), groupEndpoint(t, g)
	join(t, a, b)
	old := transport.RemoteFor(region, b)
	f.raiseOn(0, portDown)
	groupEvents(g)
	c, d := groupEndpoint(t, g), groupEndpoint(t, g)
	join(t, c, d)
	_, err = c.PostSend([]transport.SendRequest{{Op: transport.OpWrite, Local: whole(region), Remote: old}})
	require.ErrorContains(t, err, "Remote.Key is of port 0 of the peer, the connection goes to port 1")
	// What fails anyhow is flushed, whatever it names.
	post(t, a, transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: whole(region), Remote: old})
	require.ErrorIs(t, region.Close(), transport.ErrBusy)
	var done [4]transport.Completion
	n, err := g.Poll(done[:])
	require.NoError(t, err)
	require.Equal(t, transport.StatusFlushed, done[0].Status)
	require.Equal(t, 1, n)
	// Busy on one port only: nothing was closed.
	post(t, c, transport.SendRequest{ID: 2, Op: transport.OpWrite, Local: whole(region), Remote: region.Remote()})
	require.ErrorIs(t, region.Close(), transport.ErrBusy)
	require.Zero(t, region.(*groupRegion).on[0].Load().pins.Load())
	f.finish(c.qp, libibverbs.WCSuccess)
	_, err = g.Poll(done[:])
	require.NoError(t, err)
	require.NoError(t, region.Close())
	require.NoError(t, region.Close())
	_, err = c.PostSend([]transport.SendRequest{{Op: transport.OpSend, Local: whole(region)}})
	require.ErrorContains(t, err, "or a closed one")
}

// TestDeviceIsOpenedAgain: a device that was lost with all that it had is used
// again once nothing of it is left.
func TestDeviceIsOpenedAgain(t *testing.T) {
	f := newFakes(t, 2)
	g := f.group(Config{})
	region, err := g.Register(f.arena.Bytes()[:64], both)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, region.Close()) })
	a, err := g.NewEndpoint(oneEach)
	require.NoError(t, err)
	postRecv(t, a, transport.RecvRequest{ID: 1, Local: whole(region)})
	f.removed = true
	require.NoError(t, sys.Signal(f.async))
	require.NoError(t, g.Wait(time.Minute))
	groupEvents(g)
	b := groupEndpoint(t, g)
	require.Equal(t, "fake1/1", b.Device(), "something of the first one is left")
	closeOnGroup(t, g, a)
	f.forget(0) // the kernel has freed it
	require.NoError(t, sys.Unsignal(f.async))
	f.removed = false
	c := groupEndpoint(t, g)
	require.Equal(t, "fake0/1", c.Device())
	require.NotEqual(t, a.ID(), c.ID())
	postRecv(t, c, transport.RecvRequest{ID: 2, Local: whole(region)})
	require.EqualValues(t, 1, g.NICs()[0].NumFailures)
	require.Equal(t, "fake0/1 is usable again after 1 failures", g.Remarks())
}

// TestPortCannotBePolled: a port with a queue that cannot be asked is lost as a whole,
// whichever call finds that out; what it had is returned, and others go on.
func TestPortCannotBePolled(t *testing.T) {
	for name, find := range map[string]func(*Group) error{
		"poll": func(g *Group) error { _, err := g.Poll(make([]transport.Completion, 4)); return err },
		"wait": func(g *Group) error { return g.Wait(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakes(t, 2)
			f.devices[0].port = libibverbs.PortActive - 1 // so that the second one is opened first
			g := f.group(Config{})
			other := groupEndpoint(t, g)
			require.Equal(t, "fake1/1", other.Device())
			f.devices[0].port = libibverbs.PortActive
			g.members[0].triedAt = time.Now().Add(-reopenAfter)
			a := groupEndpoint(t, g)
			require.Equal(t, "fake0/1", a.Device())
			postRecv(t, a, transport.RecvRequest{ID: 1})
			postRecv(t, other, transport.RecvRequest{ID: 2})
			f.mute(0, true)
			require.NoError(t, find(g))
			var done [4]transport.Completion
			n, err := g.Poll(done[:])
			require.NoError(t, err)
			require.Equal(t, []transport.Completion{{ID: 1, Endpoint: a.ID(), Op: transport.OpRecv, Status: transport.StatusFlushed}}, done[:n])
			require.Equal(t, transport.StateError, a.State())
			require.Equal(t, transport.StateNew, other.State())
			require.ElementsMatch(t, []transport.EventKind{transport.EventOther, transport.EventEndpointFailed}, groupEvents(g), "not all are down")
			require.Equal(t, "fake1/1", groupEndpoint(t, g).Device(), "something of the first one is left")
			require.Contains(t, g.Remarks(), "fake0/1 is not usable (1 failures): fake0/1: ")
			f.mute(0, false)
			closeOnGroup(t, g, a)
			require.Equal(t, "fake0/1", groupEndpoint(t, g).Device(), "it is opened again")
		})
	}
}

// TestOnlyPortCannotBePolled: the loss of the only port is not the end of the group,
// whichever call finds it out; it is opened again.
func TestOnlyPortCannotBePolled(t *testing.T) {
	f := newFakes(t, 1)
	g := f.group(Config{})
	a := groupEndpoint(t, g)
	postRecv(t, a, transport.RecvRequest{ID: 1})
	f.mute(0, true)
	require.NoError(t, g.Wait(time.Minute))
	var done [4]transport.Completion
	n, err := g.Poll(done[:])
	require.NoError(t, err)
	require.Equal(t, []transport.Completion{{ID: 1, Endpoint: a.ID(), Op: transport.OpRecv, Status: transport.StatusFlushed}}, done[:n])
	require.ElementsMatch(t, []transport.EventKind{transport.EventDeviceDown, transport.EventEndpointFailed}, groupEvents(g))
	ready, err := g.members[0].tr.Load().beginWait()
	require.False(t, ready)
	require.NoError(t, err, "whoever waits would not sleep any more")
	_, err = g.NewEndpoint(oneEach)
	require.ErrorIs(t, err, transport.ErrNoResource, "something of it is left")
	f.mute(0, false)
	closeOnGroup(t, g, a)
	require.Equal(t, "fake0/1", groupEndpoint(t, g).Device())
	g.Wake()
	require.NoError(t, g.Wait(time.Hour))
}

// TestWaitWithoutPorts: a caller that waits while no port is open sleeps as long as it
// may, and is woken like others: also when one is opened, or all ends.
func TestWaitWithoutPorts(t *testing.T) {
	f := newFakes(t, 1)
	g := f.group(Config{})
	f.remove(0)
	groupEvents(g)
	_, err := g.NewEndpoint(oneEach)
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.False(t, g.NICs()[0].Open)
	for len(g.bell) > 0 {
		require.NoError(t, g.Wait(time.Second)) // it was rung meanwhile
	}
	begin := time.Now()
	require.NoError(t, g.Wait(50*time.Millisecond))
	require.GreaterOrEqual(t, time.Since(begin), 50*time.Millisecond)
	g.Wake()
	require.NoError(t, g.Wait(time.Hour))

	waited := make(chan error, 1)
	wait := func() { waited <- g.Wait(time.Hour) }
	go wait()
	require.NoError(t, g.Close())
	require.ErrorIs(t, firstError(<-waited, g.Wait(time.Hour)), transport.ErrClosed)

	f = newFakes(t, 1)
	g = f.group(Config{})
	f.remove(0)
	groupEvents(g)
	_, err = g.NewEndpoint(oneEach)
	require.ErrorIs(t, err, transport.ErrNoResource)
	for len(g.bell) > 0 {
		require.NoError(t, g.Wait(time.Second))
	}
	go wait()
	f.insert(0)
	g.members[0].triedAt = time.Now().Add(-reopenAfter)
	groupEndpoint(t, g)
	require.NoError(t, <-waited)
}

// TestOpensThatFail: endpoints have numbers of their own, however often a port was
// tried in vain.
func TestOpensThatFail(t *testing.T) {
	f := newFakes(t, 2)
	g := f.group(Config{})
	other := g.members[1]
	f.devices[1].port = libibverbs.PortActive - 1
	require.Nil(t, g.open(other))
	require.Zero(t, other.numOpens)
	f.devices[1].port = libibverbs.PortActive
	other.triedAt = time.Now().Add(-reopenAfter)
	require.NotNil(t, g.open(other))
	require.EqualValues(t, 1, other.numOpens)
	f.raiseOn(0, portDown)
	groupEvents(g)
	require.EqualValues(t, 1<<56|1, groupEndpoint(t, g).ID())
}

// TestNoPortIsLeft: the error says what is wrong with each; one that could not
// be opened is left alone for a while.
func TestNoPortIsLeft(t *testing.T) {
	f := newFakes(t, 2)
	f.devices[0].port = libibverbs.PortActive - 1
	g := f.group(Config{})
	require.Equal(t, "fake1/1", g.Device())
	f.raiseOn(1, portDown)
	require.Equal(t, []transport.EventKind{transport.EventOther}, groupEvents(g), "the other one may be there by now")
	f.calls = nil
	_, err := g.NewEndpoint(oneEach)
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.ErrorContains(t, err, "fake0 has no active port (port 1 is in state 3; 4 is active), of 1; fake1/1: fake1/1: port is down")
	require.NotContains(t, strings.Join(f.calls, " "), "open_device", "a moment ago it did not work")
	require.Equal(t, []transport.EventKind{transport.EventDeviceDown}, groupEvents(g), "none is left")
	require.Empty(t, groupEvents(g), "once")
	_, err = g.NewEndpoint(oneEach)
	require.ErrorIs(t, err, transport.ErrNoResource)
	f.raiseOn(1, portUp)
	require.Equal(t, []transport.EventKind{transport.EventDeviceUp}, groupEvents(g), "one is usable before that was said")
	f.raiseOn(1, portDown)
	groupEvents(g)
	f.devices[0].port = libibverbs.PortActive
	g.members[0].triedAt = time.Now().Add(-reopenAfter)
	require.Equal(t, "fake0/1", groupEndpoint(t, g).Device())

	f.devices[0].port, f.devices[1].port = 1, 1
	_, err = f.tryGroup(Config{})
	require.ErrorIs(t, err, transport.ErrNotSupported)
	require.ErrorContains(t, err, "fake0 has no active port")
	require.ErrorContains(t, err, "fake1 has no active port")
}

// TestSecondPortDoesNotOpen: nothing stays of a port that cannot take all
// regions, and the others go on.
func TestSecondPortDoesNotOpen(t *testing.T) {
	f := newFakes(t, 3)
	g := f.group(Config{})
	var regions []transport.Region
	for range 3 {
		r, err := g.Register(f.arena.Bytes()[:64], both)
		require.NoError(t, err)
		regions = append(regions, r)
	}
	f.raiseOn(0, portDown)
	groupEvents(g)
	f.failures["reg_mr"] = []syscall.Errno{0, 0, syscall.ENOMEM}
	require.Equal(t, "fake2/1", groupEndpoint(t, g).Device())
	require.Contains(t, g.NICs()[1].Why, "ibv_reg_mr")
	require.False(t, g.NICs()[1].Open)
	// A registration that fails on one port is none.
	f.failures["reg_mr"] = []syscall.Errno{0, syscall.ENOMEM}
	_, err := g.Register(f.arena.Bytes()[:64], both)
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.ErrorIs(t, g.Close(), transport.ErrBusy)
	for _, r := range regions {
		require.NoError(t, r.Close())
	}
}

// TestGroupWaits: whatever port has something ends a Wait, and so does Wake,
// also one that was opened during it.
func TestGroupWaits(t *testing.T) {
	f := newFakes(t, 2)
	g := f.group(Config{})
	a := groupEndpoint(t, g)
	opened := make(chan *endpoint)
	waited := make(chan error)
	go func() { waited <- g.Wait(time.Hour) }()
	f.raiseOn(0, portDown)
	require.NoError(t, <-waited)
	groupEvents(g)
	go func() { waited <- g.Wait(time.Hour) }()
	go func() { e, _ := g.NewEndpoint(oneEach); opened <- e.(*endpoint) }()
	b := <-opened
	t.Cleanup(func() { closeOnGroup(t, g, b) })
	require.NoError(t, <-waited, "it did not know the new one")
	require.Equal(t, "fake1/1", b.Device())
	for _, e := range []*endpoint{b, a} {
		go func() { waited <- g.Wait(time.Hour) }()
		postRecv(t, e, transport.RecvRequest{ID: 7})
		if e == b {
			f.finish(e.qp, libibverbs.WCSuccess)
		}
		require.NoError(t, <-waited)
		for n := 0; n == 0; {
			var done [1]transport.Completion
			var err error
			n, err = g.Poll(done[:])
			require.NoError(t, err)
		}
	}
	g.Wake()
	require.NoError(t, g.Wait(time.Hour))
	require.NoError(t, g.Wait(0))
}

// TestPollEventsAllocatesNothing, nor asks the device, each time. (Polls do
// not either, but the fake does: the real device's test is of them.)
func TestPollEventsAllocatesNothing(t *testing.T) {
	f := newFakes(t, 2)
	g := f.group(Config{})
	f.raiseOn(0, portDown)
	groupEvents(g)
	groupEndpoint(t, g) // both are open
	var events [4]transport.Event
	g.each(func(t *Transport) { t.events.every = time.Hour })
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		g.PollEvents(events[:])
	}))
	assert.Equal(t, time.Millisecond, lookEvery, "what it is otherwise")
}

// TestGroupCloses: Close ends a Wait and leaves nothing, and everything after
// it is refused.
func TestGroupCloses(t *testing.T) {
	f := newFakes(t, 2)
	fds := sys.Stats()
	g, err := f.tryGroup(Config{})
	require.NoError(t, err)
	f.raiseOn(0, portDown)
	groupEvents(g)
	e, err := g.NewEndpoint(oneEach)
	require.NoError(t, err)
	require.ErrorIs(t, g.Close(), transport.ErrBusy)
	closeOnGroup(t, g, e)
	waited := make(chan error, 1)
	var began sync.WaitGroup
	began.Add(1)
	go func() {
		began.Done()
		err := error(nil)
		for err == nil {
			err = g.Wait(time.Hour)
		}
		waited <- err
	}()
	began.Wait()
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	require.ErrorIs(t, <-waited, transport.ErrClosed)
	_, err = g.Poll(make([]transport.Completion, 1))
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = g.NewEndpoint(oneEach)
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = g.Register(f.arena.Bytes()[:64], 0)
	require.ErrorIs(t, err, transport.ErrClosed)
	g.Wake()
	assert.Equal(t, fds, sys.Stats())
}
