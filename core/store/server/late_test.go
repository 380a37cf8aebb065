package server_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
	"github.com/moewire/moewire/core/wire"
)

// A request past its deadline before the server begins it is not done; one that lets go of something is.
func TestLateRequests(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) {
		c.Store.(*servertest.Engine).Look = func() { time.Sleep(20 * time.Millisecond) }
	})
	r := open(t, s)
	said, payload := r.put("key", []byte("data"))
	for _, us := range []uint32{1000, 0, 3_600_000_000} {
		for _, m := range []struct {
			code    message.Code
			said    message.Request
			payload []byte
		}{{message.Exists, message.Request{NumKeys: 1}, table("other")}, {message.Put, said, payload}, {message.Release, message.Request{NumKeys: 1}, make([]byte, 8)}} {
			r.last++
			m.said.DeadlineUs = us
			head := wire.Head{Code: m.code, Request: r.last, Extra: m.said.Encode(make([]byte, message.RequestBytes))}
			require.NoError(t, r.out.Append(&head, [][]byte{m.payload}))
		}
		require.NoError(t, r.out.Flush()) // in one write, so that they arrive together
		var statuses []message.Status
		for range 3 {
			head, _ := r.readReply()
			statuses = append(statuses, message.Status(head.Status))
		}
		want := map[uint32]message.Status{1000: message.Late, 0: message.OK, 3_600_000_000: message.Existing}[us]
		require.Equal(t, []message.Status{message.OK, want, message.OK}, statuses)
		require.Equal(t, us != 1000, r.exists("key") == 1)
	}
}

// A server with a disk that hangs ends within its time, though a flush runs.
func TestCloseDoesNotWaitForTheDisk(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	s, _ := serve(t, func(c *server.Config) { c.Store.(*servertest.Engine).Stuck = stuck })
	r := open(t, s)
	r.say(message.Flush, message.Request{}, nil)
	require.Eventually(t, func() bool { return s.Stats().Running == 1 }, 20*time.Second, time.Millisecond)
	done := make(chan struct{})
	go func() { s.Drain(time.Now().Add(20 * time.Millisecond)); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for the flush")
	}
	s.Close()
}

// A put that a hung disk holds keeps neither Drain nor Close beyond their time. The store is closed when it has let go.
func TestCloseDoesNotWaitForAPut(t *testing.T) {
	holds := make(chan struct{})
	s, engine := serve(t, func(c *server.Config) {
		c.Store.(*servertest.Engine).Holds, c.End = holds, 20*time.Millisecond
	})
	r := open(t, s)
	said, payload := r.put("key", []byte("data"))
	r.say(message.Put, said, payload)
	require.Eventually(t, func() bool { open, _, _ := engine.Counts(); return open == 1 }, 20*time.Second, time.Millisecond)
	done := make(chan struct{})
	go func() { s.Drain(time.Now().Add(20 * time.Millisecond)); s.Close(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("it waits for the disk")
	}
	closed := make(chan int, 1)
	err := s.CloseStore(func() error { open, _, _ := engine.Counts(); closed <- open; return nil }, 20*time.Millisecond)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, "its disk does not answer")
	require.Empty(t, closed, "it is being called")
	close(holds)
	select {
	case open := <-closed:
		require.Zero(t, open)
	case <-time.After(20 * time.Second):
		t.Error("the store stays open")
	}
	require.NoError(t, s.CloseStore(func() error { return nil }, time.Minute))
}

// full is an engine that has no room for namespaces.
type full struct{ *servertest.Engine }

func (full) Namespace([32]byte, string) (store.NS, error) {
	return 0, fmt.Errorf("%w: %d", store.ErrNamespaces, store.MaxNamespaces)
}

// What is refused for its number says how many there may be.
func TestQuotaSaysTheBound(t *testing.T) {
	s, _ := serve(t)
	r := open(t, s)
	for i := range 15 {
		status, _ := r.do(message.Open, message.Request{}, (&message.Namespace{Salt: fmt.Sprint(i)}).Append(nil))
		require.Equal(t, message.OK, status)
	}
	status, text := r.do(message.Open, message.Request{}, (&message.Namespace{Model: "x"}).Append(nil))
	require.Equal(t, message.Quota, status)
	require.Contains(t, string(text), "allowed: 16")

	s, _ = serve(t, func(c *server.Config) { c.Store = full{servertest.New()} })
	r, err := connect(t, s)
	require.NoError(t, err)
	status, text = r.do(message.Open, message.Request{}, name.Append(nil))
	require.Equal(t, message.Quota, status)
	require.Contains(t, string(text), fmt.Sprint(store.MaxNamespaces))
}

// Stats that are longer than a reply may be are refused with both numbers, and the connection stays.
func TestStatsThatAreTooLong(t *testing.T) {
	said := "short"
	s, _ := serve(t, func(c *server.Config) { c.Stats = func() any { return said } })
	r := open(t, s)
	status, _ := r.do(message.Stats, message.Request{}, nil)
	require.Equal(t, message.OK, status)
	s, _ = serve(t, func(c *server.Config) { c.Stats = func() any { return strings.Repeat("x", message.MaxStatsBytes) } })
	r = open(t, s)
	status, text := r.do(message.Stats, message.Request{}, nil)
	require.Equal(t, message.Failed, status)
	require.Contains(t, string(text), "allowed: 1048576")
	require.Zero(t, r.exists("key"))
}
