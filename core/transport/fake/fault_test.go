package fake_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

var errFault = errors.New("made to fail")

func TestNothingMovesWithoutSteps(t *testing.T) {
	s := newScene(t, fake.Config{})
	s.mem[0].Bytes()[0] = 7
	s.write(1)
	require.Empty(t, s.poll(0))
	require.Zero(t, s.mem[1].Bytes()[0])
	require.True(t, s.network.Step()) // the bytes
	require.Empty(t, s.poll(0))
	require.Equal(t, byte(7), s.mem[1].Bytes()[0])
	require.True(t, s.network.Step()) // the completion
	require.Len(t, s.poll(0), 1)
	require.False(t, s.network.Step())
}

func TestCreationFails(t *testing.T) {
	s := newScene(t, fake.Config{MaxQueuePairs: 2, MaxLockedBytes: 1000})
	before := s.tr[0].Counts()
	require.Equal(t, 1, before.QueuePairs)

	f := s.network.Inject(fake.Fault{Point: fake.AtCreate, Transport: s.tr[0], Err: transport.ErrNoResource, Times: 1})
	_, err := s.tr[0].NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.Equal(t, 1, f.Struck())
	require.Equal(t, 1, s.tr[0].Counts().QueuePairs)

	ep := s.endpoint(0)
	_, err = s.tr[0].NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	require.ErrorIs(t, err, transport.ErrNoResource, "two are there")
	require.NoError(t, ep.Close())
	got := s.tr[0].Counts()
	require.Equal(t, [4]int{2, 1, 1, 2}, [4]int{got.QueuePairsCreated, got.QueuePairsDestroyed, got.QueuePairs, got.MaxQueuePairs})

	_, err = s.tr[0].Register(make([]byte, 1000-256+1), 0)
	require.ErrorIs(t, err, transport.ErrNoResource)
	r, err := s.tr[0].Register(make([]byte, 1000-256), 0)
	require.NoError(t, err)
	require.Equal(t, int64(1000), s.tr[0].Counts().LockedBytes)
	require.NoError(t, r.Close())
	require.Equal(t, int64(256), s.tr[0].Counts().LockedBytes)
}

// TestGatesBlock: a queue pair counts from before it is made until after it is
// destroyed, and a call that hangs holds up no other.
func TestGatesBlock(t *testing.T) {
	s := newScene(t, fake.Config{})
	making, breaking := fake.NewGate(), fake.NewGate()
	s.network.Inject(fake.Fault{Point: fake.AtCreate, Gate: making, Times: 1})
	var ep transport.Endpoint
	var calls sync.WaitGroup
	calls.Go(func() { ep, _ = s.tr[0].NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1}) })
	<-making.Arrived()
	require.Equal(t, 2, s.tr[0].Counts().QueuePairs)
	other := s.endpoint(0)
	require.NoError(t, other.Close())
	making.Open()
	calls.Wait()

	s.network.Inject(fake.Fault{Point: fake.AtDestroy, Endpoint: ep.ID(), Gate: breaking})
	calls.Go(func() { _ = ep.Close() })
	<-breaking.Arrived()
	require.Equal(t, 1, breaking.Waiting())
	require.Equal(t, 2, s.tr[0].Counts().QueuePairs)
	require.ErrorIs(t, ep.Close(), transport.ErrBusy, "somebody is at it")
	breaking.Open()
	calls.Wait()
	require.Equal(t, 1, s.tr[0].Counts().QueuePairs)
	require.Equal(t, transport.StateClosed, ep.State())
}

func TestStateChangesFail(t *testing.T) {
	s := newScene(t, fake.Config{})
	s.network.Inject(fake.Fault{Point: fake.AtConnect, Err: errFault, Times: 1})
	ep := s.endpoint(0)
	require.ErrorIs(t, ep.Connect(s.ep[1].Local(), s.in(time.Second)), errFault)
	require.Equal(t, transport.StateError, ep.State())

	s.network.Inject(fake.Fault{Point: fake.AtDestroy, Err: errFault, Times: 1})
	require.ErrorIs(t, ep.Close(), errFault)
	require.Equal(t, 2, s.tr[0].Counts().QueuePairs)
	require.NoError(t, ep.Close())

	s.network.Inject(fake.Fault{Point: fake.AtRetire, Err: errFault, Times: 1})
	require.ErrorIs(t, s.ep[0].Retire(), errFault)
	require.Equal(t, transport.StateReady, s.ep[0].State())
	require.NoError(t, s.ep[0].Retire())
}

// TestConnectStalls: a state change that hangs ends with the deadline, by the
// fake clock.
func TestConnectStalls(t *testing.T) {
	s := newScene(t, fake.Config{})
	gate := fake.NewGate()
	s.network.Inject(fake.Fault{Point: fake.AtConnect, Gate: gate})
	ep := s.endpoint(0)
	ended := make(chan error)
	go func() { ended <- ep.Connect(s.ep[1].Local(), s.in(time.Minute)) }()
	<-gate.Arrived()
	s.clock.Advance(time.Minute - 1)
	select {
	case err := <-ended:
		t.Fatalf("ended before the deadline: %v", err)
	default:
	}
	s.clock.Advance(1)
	require.ErrorContains(t, <-ended, "deadline")
	require.Equal(t, transport.StateError, ep.State())
}

// TestPostFails is the fault of CO6: in the middle of a list.
func TestPostFails(t *testing.T) {
	s := newScene(t, fake.Config{})
	s.network.Inject(fake.Fault{Point: fake.AtPostSend, Skip: 2, Times: 1, Err: errFault})
	list := make([]transport.SendRequest, 4)
	for i := range list {
		list[i] = transport.SendRequest{ID: uint64(i), Op: transport.OpWrite, Remote: s.mem[1].Remote()}
	}
	n, err := s.ep[0].PostSend(list)
	require.ErrorIs(t, err, errFault)
	require.Equal(t, 2, n)
	s.network.Settle()
	require.Len(t, s.poll(0), 2)
	require.Equal(t, transport.StateReady, s.ep[0].State())
}

// TestEveryStatus lets a write fail in each way, before its bytes have moved
// and after.
func TestEveryStatus(t *testing.T) {
	for status := transport.StatusFlushed; status <= transport.StatusOther; status++ {
		for _, point := range []fake.Point{fake.AtWire, fake.AtComplete} {
			s := newScene(t, fake.Config{})
			s.network.Inject(fake.Fault{Point: point, Times: 1, Status: status, Vendor: 99})
			s.mem[0].Bytes()[0] = 7
			s.recv(0, 5)
			s.write(1)
			s.network.Exhaust()
			for _, done := range s.poll(0) {
				want := transport.Completion{ID: 1, Endpoint: s.ep[0].ID(), Op: transport.OpWrite, Status: status, Vendor: 99}
				if done.ID == 5 {
					want = transport.Completion{ID: 5, Endpoint: s.ep[0].ID(), Op: transport.OpRecv, Status: transport.StatusFlushed}
				}
				require.Equal(t, want, done)
			}
			moved := s.mem[1].Bytes()[0] == 7
			require.Equal(t, point == fake.AtComplete, moved)
			require.Equal(t, transport.StateError, s.ep[0].State())
			require.Len(t, s.events(0), 1)
			require.Equal(t, 2, s.tr[0].Counts().Polled)
		}
	}
}

func TestLostRequest(t *testing.T) {
	s := newScene(t, fake.Config{RetryTimeout: time.Second})
	s.network.Inject(fake.Fault{Point: fake.AtWire, Drop: true, Times: 1})
	s.write(1)
	s.network.Settle()
	s.clock.Advance(time.Second - 1)
	s.network.Settle()
	require.Empty(t, s.poll(0))
	require.Equal(t, transport.StatusUnreachable, s.one(0).Status)
}

// TestLostCompletion is what quarantine is for.
func TestLostCompletion(t *testing.T) {
	s := newScene(t, fake.Config{})
	s.network.Inject(fake.Fault{Point: fake.AtComplete, Drop: true, Times: 1})
	s.write(1)
	s.write(2)
	require.Equal(t, transport.StatusOK, s.one(0).Status)
	require.NoError(t, s.ep[0].Retire())
	s.network.Exhaust()
	require.Empty(t, s.poll(0))
	require.ErrorIs(t, s.ep[0].Close(), transport.ErrBusy)
	require.ErrorIs(t, s.mem[0].Close(), transport.ErrBusy)
	got := s.tr[0].Counts()
	require.Equal(t, [3]int{2, 1, 1}, [3]int{got.Posted(), got.Ended(), got.Dropped})
	require.Equal(t, 1, got.BusyCloses)
}

func TestDuplicateCompletion(t *testing.T) {
	s := newScene(t, fake.Config{})
	s.network.Inject(fake.Fault{Point: fake.AtComplete, Duplicate: true, Times: 1})
	s.write(1)
	s.network.Exhaust()
	done := s.poll(0)
	require.Len(t, done, 2)
	require.Equal(t, done[0], done[1])
	require.Equal(t, 1, s.tr[0].Counts().Polled)
	require.Equal(t, 1, s.tr[0].Counts().Repeated)
}

func TestDelay(t *testing.T) {
	for _, point := range []fake.Point{fake.AtWire, fake.AtComplete} {
		s := newScene(t, fake.Config{})
		s.network.Inject(fake.Fault{Point: point, MinDelay: time.Second, MaxDelay: 2 * time.Second, Times: 1})
		s.write(1)
		s.network.Settle()
		require.Empty(t, s.poll(0))
		s.write(2) // passes it by
		s.network.Settle()
		require.Equal(t, uint64(2), s.poll(0)[0].ID)
		s.clock.Advance(time.Second - 1)
		s.network.Settle()
		require.Empty(t, s.poll(0))
		s.clock.Advance(time.Second + 1)
		s.network.Settle()
		require.Len(t, s.poll(0), 1)
	}
}

func TestUnresponsive(t *testing.T) {
	s := newScene(t, fake.Config{RetryTimeout: time.Second})
	s.network.SetUnresponsive(s.tr[1], true)
	s.write(1)
	s.network.Settle()
	s.clock.Advance(time.Second / 2)
	s.network.SetUnresponsive(s.tr[1], false)
	require.Equal(t, transport.StatusOK, s.one(0).Status, "back in time")
	s.network.SetUnresponsive(s.tr[1], true)
	s.write(2)
	require.Equal(t, transport.StatusUnreachable, s.one(0).Status)
	require.Equal(t, transport.StateReady, s.ep[1].State(), "the other side knows nothing")
}

// TestLateNIC is the fault of CO4: what was retired goes on writing.
func TestLateNIC(t *testing.T) {
	for late, atStatus := range map[fake.Late]bool{fake.LateNever: false, fake.LateUntilStatus: false, fake.LateUntilClose: true} {
		s := newScene(t, fake.Config{Late: late})
		s.recv(0, 1)
		require.NoError(t, s.ep[0].Retire())
		require.Equal(t, late != fake.LateNever, s.scribbles(), "before the completion")
		require.Equal(t, transport.StatusFlushed, s.one(0).Status)
		require.Equal(t, atStatus, s.scribbles(), "after it, mode %d", late)
		require.NoError(t, s.ep[0].Close())
		require.False(t, s.scribbles(), "after the endpoint was closed")
		require.Equal(t, late != fake.LateNever, s.tr[0].Counts().LateWrites > 0)
	}
}

// scribbles reports whether a late NIC still changes the memory of side 0.
func (s *scene) scribbles() bool {
	before := bytes.Clone(s.mem[0].Bytes())
	s.network.Scribble()
	return !bytes.Equal(before, s.mem[0].Bytes())
}

// TestProbe: a lock that is held at a provider call is noticed.
func TestProbe(t *testing.T) {
	var mine sync.Mutex
	var held []string
	s := newScene(t, fake.Config{Probe: func(call string) {
		if !mine.TryLock() {
			held = append(held, call)
			return
		}
		mine.Unlock()
	}})
	require.Empty(t, held)
	mine.Lock()
	ep := s.endpoint(0)
	s.write(1)
	s.recv(0, 2)
	s.poll(0)
	_ = ep.Connect(s.ep[1].Local(), s.in(time.Second))
	_ = ep.Retire()
	_ = ep.Close()
	r, err := s.tr[0].Register(make([]byte, 1), 0)
	require.NoError(t, err)
	_ = r.Close()
	_ = s.tr[0].Close()
	require.Equal(t, []string{
		"create", "post send", "post recv", "poll", "connect", "retire", "destroy", "register", "deregister", "close",
	}, held)
}

func TestEvents(t *testing.T) {
	s := newScene(t, fake.Config{})
	other := s.endpoint(0)
	s.recv(0, 1)
	s.network.Raise(s.tr[0], transport.Event{Kind: transport.EventOther, Detail: "warm"})
	require.Equal(t, []transport.Event{{Kind: transport.EventOther, Detail: "warm"}}, s.events(0))
	for range 2 { // the second changes nothing
		s.network.Raise(s.tr[0], transport.Event{Kind: transport.EventEndpointFailed, Endpoint: s.ep[0].ID()})
	}
	require.Equal(t, []transport.Event{{Kind: transport.EventEndpointFailed, Endpoint: s.ep[0].ID()}}, s.events(0))
	require.Equal(t, transport.StatusFlushed, s.one(0).Status)
	s.network.Raise(s.tr[0], transport.Event{Kind: transport.EventDeviceDown})
	require.Equal(t, []transport.Event{
		{Kind: transport.EventEndpointFailed, Endpoint: other.ID()}, {Kind: transport.EventDeviceDown},
	}, s.events(0))
	require.Equal(t, transport.StateReady, s.ep[1].State())
}

func TestRemoveFault(t *testing.T) {
	s := newScene(t, fake.Config{})
	f := s.network.Inject(fake.Fault{Point: fake.AtPostSend, Err: errFault})
	_, err := s.ep[0].PostSend([]transport.SendRequest{{Op: transport.OpWrite}})
	require.ErrorIs(t, err, errFault)
	f.Remove()
	f.Remove()
	s.write(1)
	require.Equal(t, 1, f.Struck())
}

// TestChunks: bytes come in parts, and not from the start.
func TestChunks(t *testing.T) {
	firsts := map[int]bool{}
	for range 60 {
		s := newScene(t, fake.Config{ChunkBytes: 16})
		copy(s.mem[0].Bytes(), bytes.Repeat([]byte{1}, 40))
		s.post(transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: s.piece(0, 0, 40), Remote: s.mem[1].Remote()})
		require.True(t, s.network.Step())
		got := s.mem[1].Bytes()[:40]
		firsts[bytes.IndexByte(got, 1)] = true
		require.Contains(t, []int{8, 16}, bytes.Count(got, []byte{1}))
		require.Equal(t, transport.StatusOK, s.one(0).Status)
		require.Equal(t, bytes.Repeat([]byte{1}, 40), got)
	}
	require.Equal(t, map[int]bool{0: true, 16: true, 32: true}, firsts)
}
