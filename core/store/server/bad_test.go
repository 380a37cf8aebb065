package server_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/tag"
)

// sendComplaint says that a block did not fit a tag.
func (r *raw) sendComplaint(key string, said tag.Tag) {
	r.t.Helper()
	r.say(message.Bad, message.Request{NumKeys: 1, Tag: said}, table(key))
}

// complain does so, and reports whether that block is gone.
func (r *raw) complain(key string, said tag.Tag) bool {
	r.t.Helper()
	r.sendComplaint(key, said)
	head, b := r.readReply()
	require.Equal(r.t, message.OK, message.Status(head.Status))
	gone := make([]bool, 1)
	_, err := message.Found(b, gone)
	require.NoError(r.t, err)
	return gone[0]
}

// A complaint about a block that fits its tag changes nothing, nor does one about another block than the key has. One
// about a block that does not fit ends it, for all clients.
func TestComplaints(t *testing.T) {
	for what, onDisk := range map[string]bool{"memory": false, "disk": true} {
		t.Run(what, func(t *testing.T) {
			s, e := serve(t)
			e.OnDisk.Store(onDisk)
			r, data := open(t, s), noise(300<<10)
			r.mustPut("good", data)
			r.mustPut("spoilt", data)
			e.Spoil("spoilt")
			require.False(t, r.complain("good", r.tagger.Of([]byte("good"), data)))
			require.EqualValues(t, 1, s.Counters().Changed.Load())
			require.True(t, r.complain("spoilt", tag.Tag{1}), "another block than the one that was read")
			require.True(t, r.complain("never put", tag.Tag{}))
			require.Zero(t, s.Counters().BadReads.Load())
			require.Equal(t, 2, r.exists("good", "spoilt"))
			require.True(t, r.complain("spoilt", r.tagger.Of([]byte("spoilt"), data)))
			require.Equal(t, 1, r.exists("good", "spoilt"))
			require.EqualValues(t, 1, s.Counters().Changed.Load())
			require.EqualValues(t, 1, s.Counters().BadReads.Load())
			status, _ := r.do(message.Bad, message.Request{NumKeys: 2}, table("good", "spoilt"))
			require.Equal(t, message.Malformed, status, "one block at a time")
			status, _ = r.do(message.Bad, message.Request{NumKeys: 1}, []byte{2, 0, 'k'})
			require.Equal(t, message.Malformed, status)
			quiet(t, e)
		})
	}
}

// A block that cannot be read is not bad, and one that takes too long to read is not, either.
func TestComplaintWithoutAnAnswer(t *testing.T) {
	for _, c := range []struct {
		want   message.Status
		read   func() error
		failed int
	}{
		{message.Failed, func() error { return errors.New("the disk") }, 1},
		{message.Late, func() error { time.Sleep(600 * time.Millisecond); return nil }, 0},
	} {
		s, e := serve(t, func(c *server.Config) { c.Total = 500 * time.Millisecond })
		e.OnDisk.Store(true)
		var reads atomic.Int64
		e.OnRead = func(int64) error { reads.Add(1); return c.read() }
		r, data := open(t, s), noise(1<<20)
		r.mustPut("key", data)
		r.sendComplaint("key", r.tagger.Of([]byte("key"), data))
		head, _ := r.readReply()
		require.Equal(t, c.want, message.Status(head.Status))
		require.EqualValues(t, 1, reads.Load())
		require.Equal(t, 1, r.exists("key"))
		require.EqualValues(t, c.failed, s.Counters().ReadFailed.Load())
		require.Zero(t, s.Counters().BadReads.Load())
		quiet(t, e)
	}
}

// slowDisk makes a server with a block on a disk; its first piece is read once the channel is closed, and a client
// that complains of it.
func slowDisk(t *testing.T) (s *server.Server, r *raw, reads *atomic.Int64, hold chan struct{}) {
	s, e := serve(t)
	e.OnDisk.Store(true)
	hold, reads = make(chan struct{}), &atomic.Int64{}
	e.OnRead = func(int64) error { reads.Add(1); <-hold; return nil }
	r, data := open(t, s), noise(1<<20)
	r.mustPut("key", data)
	r.sendComplaint("key", r.tagger.Of([]byte("key"), data))
	require.Eventually(t, func() bool { return reads.Load() == 1 }, 20*time.Second, time.Millisecond)
	t.Cleanup(func() { quiet(t, e) })
	return s, r, reads, hold
}

// While a block is looked at its client's other requests go on, and other complaints wait for their turn.
func TestComplaintsAreOnTheSide(t *testing.T) {
	_, r, reads, hold := slowDisk(t)
	r.sendComplaint("key", r.tagger.Of([]byte("key"), noise(1<<20)))
	require.Equal(t, 1, r.exists("key"))
	require.EqualValues(t, 1, reads.Load())
	close(hold)
	for range 2 {
		head, _ := r.readReply()
		require.Equal(t, message.Bad, head.Code)
	}
	require.EqualValues(t, 8, reads.Load())
}

// A server that ends at the deadline of its drain, and one without its client, do not look at the rest of the block.
func TestComplaintEnds(t *testing.T) {
	s, r, reads, hold := slowDisk(t)
	done := make(chan struct{})
	go func() { s.Drain(time.Now().Add(50 * time.Millisecond)); close(done) }()
	r.gone()
	close(hold)
	<-done
	require.EqualValues(t, 1, reads.Load())

	s, r, reads, hold = slowDisk(t)
	_, err := r.nc.Write(make([]byte, 1000)) // which is no message
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Counters().Lost.Load() == 1 }, 20*time.Second, time.Millisecond)
	close(hold)
	require.Eventually(t, func() bool { return s.Stats().Clients == 0 }, 20*time.Second, time.Millisecond)
	require.EqualValues(t, 1, reads.Load())
}

// A defect of the storage ends the connection that has met it, and gives back what was leased.
func TestComplaintPanics(t *testing.T) {
	s, e := serve(t)
	e.OnDisk.Store(true)
	e.OnRead = func(int64) error { panic("a defect") }
	r, data := open(t, s), noise(1<<20)
	r.mustPut("key", data)
	r.sendComplaint("key", r.tagger.Of([]byte("key"), data))
	r.gone()
	quiet(t, e)
	require.Equal(t, 1, open(t, s).exists("key"))
}

// The session's digest covers the table of a get's reply, and not the blocks: they have tags.
func TestBlocksAreSealedOnce(t *testing.T) {
	s, _ := serve(t)
	r := open(t, s)
	r.mustPut("key", noise(1000))
	r.say(message.Get, message.Request{NumKeys: 1}, table("key"))
	head, _ := r.readReply()
	require.EqualValues(t, 1000, head.ApartBytes)
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * i >> 3)
	}
	return b
}
