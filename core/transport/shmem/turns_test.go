package shmem

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

// TestTurnsGoRound: from whatever slot, each slot has one turn, in order.
func TestTurnsGoRound(t *testing.T) {
	for _, first := range []uint32{0, 1, 63, 64, 100, MaxEndpoints - 1} {
		next := first
		for k := range numNewsWords + 1 {
			for word, part := turn(first, k); part != 0; {
				require.Equal(t, next, uint32(64*word)+lowest(&part))
				next = (next + 1) % MaxEndpoints
			}
		}
		require.Equal(t, first, next)
	}
}

// TestCompletionsTakeTurns: an endpoint that always has more completions than
// Poll has room for does not keep another one's back.
func TestCompletionsTakeTurns(t *testing.T) {
	tr, err := Open(Config{})
	require.NoError(t, err)
	var eps [2]transport.Endpoint
	for i := range eps {
		eps[i], err = tr.NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 1})
		require.NoError(t, err)
		require.NoError(t, eps[i].Retire()) // what is posted is flushed at once
	}
	_, err = eps[0].PostSend(make8(1))
	require.NoError(t, err)
	_, err = eps[1].PostSend(make8(2)[:1])
	require.NoError(t, err)
	done := make([]transport.Completion, 4)
	for poll := 0; ; poll++ {
		require.Less(t, poll, 3, "its turn never comes")
		n, err := tr.Poll(done)
		require.NoError(t, err)
		if has(done[:n], 2) {
			break
		}
		_, err = eps[0].PostSend(make8(1)[:n])
		require.NoError(t, err)
	}
	for _, ep := range eps {
		require.Eventually(t, func() bool { _, _ = tr.Poll(done); return ep.Close() == nil }, soon, time.Millisecond)
	}
	require.NoError(t, tr.Close())
}

func make8(id uint64) []transport.SendRequest {
	all := make([]transport.SendRequest, 8)
	for i := range all {
		all[i] = transport.SendRequest{ID: id, Op: transport.OpSend}
	}
	return all
}

func has(done []transport.Completion, id uint64) bool {
	for i := range done {
		if done[i].ID == id {
			return true
		}
	}
	return false
}

// TestRequestsTakeTurns: an endpoint that always has more to copy than Poll
// does at a time does not keep another one's requests waiting.
func TestRequestsTakeTurns(t *testing.T) {
	const size = 2 * pollBytes
	p := connected(t, size)
	ep, err := p.tr[0].NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 1})
	require.NoError(t, err)
	remote, err := p.tr[1].NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 1})
	require.NoError(t, err)
	other := &pair{t: t, ep: [2]*Endpoint{ep.(*Endpoint), remote.(*Endpoint)}}
	other.connect()
	write := func(id uint64) transport.SendRequest {
		return transport.SendRequest{ID: id, Op: transport.OpWrite, Local: p.piece(0, 0, size), Remote: p.region[1].Remote()}
	}
	reach := write(100) // both have mapped the memory from here on
	p.send(0, reach)
	p.await(100, 0, 1)
	reach.ID = 101
	other.send(0, reach)
	p.await(101, 0, 1)

	last := uint64(0)
	for range 4 {
		last++
		p.send(0, write(last))
	}
	other.send(0, write(200))
	for polls := 0; p.done[200].ID == 0; polls++ {
		require.Less(t, polls, 20, "its turn never comes")
		before := len(p.done)
		p.poll(0)
		for range len(p.done) - before {
			last++
			p.send(0, write(last))
		}
	}
	for _, e := range other.ep {
		require.NoError(t, e.Retire())
		require.Eventually(t, func() bool { p.poll(0, 1); return e.Close() == nil }, soon, time.Millisecond)
	}
	p.close(0, 1)
}

// TestFailureIsOfOneEndpoint: the report of a failure is not taken for one of
// the endpoint that has the slot afterwards.
func TestFailureIsOfOneEndpoint(t *testing.T) {
	p := connected(t, 64)
	p.tr[0].failed.set(p.ep[0].slot) // as PollEvents has seen it just before
	events := make([]transport.Event, 1)
	require.Zero(t, p.tr[0].PollEvents(events))
	p.ep[0].mu.Lock()
	p.ep[0].fail("for a reason")
	p.ep[0].mu.Unlock()
	require.Equal(t, 1, p.tr[0].PollEvents(events))
	require.Equal(t, transport.Event{Kind: transport.EventEndpointFailed, Endpoint: p.ep[0].id, Detail: "for a reason"}, events[0])
	require.Zero(t, p.tr[0].PollEvents(events))
	p.close(0, 1)
}
