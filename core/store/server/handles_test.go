package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// A put with a parent and an allocate, write, commit of the same block are the same.
func TestAllocateWriteCommit(t *testing.T) {
	s, engine := serve(t)
	a, b := open(t, s), open(t, s)
	data := []byte("some bytes of a block")
	said, payload := a.put("key", data)
	status, reply := a.do(message.Allocate, message.Request{KeyBytes: 3, Bytes: said.Bytes, Tag: said.Tag}, payload[:3])
	require.Equal(t, message.OK, status)
	handle := message.Handle(reply, 0)
	write := func(r *raw, off, n int) message.Status {
		status, _ := r.do(message.Write, message.Request{Handle: handle, Offset: uint64(off), Bytes: uint32(n)}, data[off:off+n])
		return status
	}
	commit := func(r *raw) message.Status {
		status, _ := r.do(message.Commit, message.Request{Handle: handle}, nil)
		return status
	}
	require.Equal(t, message.Malformed, write(a, 1, 3), "a gap")
	require.Equal(t, message.OK, write(a, 0, 10))
	require.Equal(t, message.Malformed, commit(a), "half of it")
	require.Equal(t, message.Unknown, write(b, 10, 5), "a handle is one connection's")
	require.Equal(t, message.Unknown, commit(b))
	require.Zero(t, b.exists("key"), "not visible before the commit")
	require.Equal(t, message.OK, write(a, 10, len(data)-10))
	require.Equal(t, message.OK, commit(a))
	require.Equal(t, message.Unknown, commit(a))
	require.Equal(t, 1, b.exists("key"))
	status, _ = b.do(message.Put, said, payload)
	require.Equal(t, message.Existing, status)
	quiet(t, engine)
}

// BS4: a second commit of a handle is unknown and changes nothing, whatever the first one was; to begin the block again says that it
// is there. Of two writings of a key the first commit counts.
func TestSecondCommit(t *testing.T) {
	s, engine := serve(t)
	a, b := open(t, s), open(t, s)
	begin := func(r *raw, data string) uint64 {
		said, payload := r.put("key", []byte(data))
		status, reply := r.do(message.Allocate, message.Request{KeyBytes: 3, Bytes: said.Bytes, Tag: said.Tag}, payload[:3])
		require.Equal(t, message.OK, status)
		handle := message.Handle(reply, 0)
		status, _ = r.do(message.Write, message.Request{Handle: handle, Bytes: said.Bytes}, []byte(data))
		require.Equal(t, message.OK, status)
		return handle
	}
	end := func(r *raw, code message.Code, handle uint64) message.Status {
		status, _ := r.do(code, message.Request{Handle: handle}, nil)
		return status
	}
	first, same, other, aborted := begin(a, "block"), begin(b, "block"), begin(a, "other"), begin(b, "block")
	require.Equal(t, message.OK, end(b, message.Abort, aborted))
	require.Equal(t, message.Unknown, end(b, message.Commit, aborted))
	require.Zero(t, b.exists("key"))
	for _, c := range []struct {
		r      *raw
		handle uint64
		want   message.Status
	}{{a, first, message.OK}, {b, same, message.Existing}, {a, other, message.Conflict}} {
		require.Equal(t, c.want, end(c.r, message.Commit, c.handle))
		for range 2 {
			require.Equal(t, message.Unknown, end(c.r, message.Commit, c.handle))
		}
		require.Equal(t, message.Unknown, end(c.r, message.Abort, c.handle))
		require.Equal(t, 1, b.exists("key"))
	}
	said, payload := a.put("key", []byte("block"))
	status, _ := a.do(message.Allocate, message.Request{KeyBytes: 3, Bytes: said.Bytes, Tag: said.Tag}, payload[:3])
	require.Equal(t, message.Existing, status, "what a client learns that did not hear of its commit")
	quiet(t, engine)
}

// BS4: what is allocated and given up, not committed in time, or left by a connection that
// ends, is given back; so is a wrong tag at the commit.
func TestWritingsEnd(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Hold = 50 * time.Millisecond })
	r := open(t, s)
	allocate := func() uint64 {
		status, reply := r.do(message.Allocate, message.Request{KeyBytes: 3, Bytes: 3}, []byte("key"))
		require.Equal(t, message.OK, status)
		return message.Handle(reply, 0)
	}
	handle := allocate()
	status, _ := r.do(message.Abort, message.Request{Handle: handle}, nil)
	require.Equal(t, message.OK, status)
	quiet(t, engine)
	allocate()
	quiet(t, engine)
	require.EqualValues(t, 1, s.Counters().Expired.Load())
	allocate()
	require.NoError(t, r.nc.Close())
	quiet(t, engine)
	require.Zero(t, open(t, s).exists("key"))
}

// What clients begin and do not go on with is bounded, for each and for all, and is given back after a pause: puts find
// room meanwhile. One block may be longer than that.
func TestUnfinishedBlocksAreBounded(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle = 300 * time.Millisecond })
	engine.Most, engine.Room = 64<<20, 40<<20
	a, b, other := open(t, s), open(t, s), open(t, s)
	begin := func(r *raw, key string, mib uint32) message.Status {
		status, _ := r.do(message.Allocate, message.Request{KeyBytes: uint16(len(key)), Bytes: mib << 20}, []byte(key))
		return status
	}
	require.Equal(t, message.OK, begin(a, "a1", 10))
	require.Equal(t, message.Quota, begin(a, "a2", 7), "17 MiB of one")
	require.Equal(t, message.OK, begin(a, "a3", 6))
	require.Equal(t, message.WouldBlock, begin(b, "b1", 17), "33 MiB of all")
	require.Equal(t, message.OK, begin(b, "b2", 16))
	require.Equal(t, message.WouldBlock, begin(other, "c1", 1))
	other.mustPut("key", make([]byte, 1<<20))
	require.Eventually(t, func() bool { return s.Counters().Expired.Load() == 3 }, 20*time.Second, time.Millisecond)
	quiet(t, engine)
	require.Equal(t, message.OK, begin(other, "c2", 33), "alone")
	quiet(t, engine)
}

// A block that goes on stays, until its time is over.
func TestUnfinishedBlockGoesOn(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle, c.Hold = 600*time.Millisecond, 20*time.Second })
	r := open(t, s)
	_, reply := r.do(message.Allocate, message.Request{KeyBytes: 3, Bytes: 8}, []byte("key"))
	handle := message.Handle(reply, 0)
	for i := range 8 {
		time.Sleep(150 * time.Millisecond)
		status, _ := r.do(message.Write, message.Request{Handle: handle, Offset: uint64(i), Bytes: 1}, []byte{1})
		require.Equal(t, message.OK, status)
	}
	require.Zero(t, s.Counters().Expired.Load())
	quiet(t, engine)
	require.EqualValues(t, 1, s.Counters().Expired.Load())
}

func TestWrongTagAtCommit(t *testing.T) {
	s, engine := serve(t)
	r := open(t, s)
	_, reply := r.do(message.Allocate, message.Request{KeyBytes: 3, Bytes: 3}, []byte("key"))
	handle := message.Handle(reply, 0)
	status, _ := r.do(message.Write, message.Request{Handle: handle, Bytes: 3}, []byte("abc"))
	require.Equal(t, message.OK, status)
	status, _ = r.do(message.Commit, message.Request{Handle: handle}, nil)
	require.Equal(t, message.BadTag, status)
	require.Zero(t, r.exists("key"))
	quiet(t, engine)
}

// BS3: a leased block is there as long as it is leased, also when it was deleted.
func TestLookupReadRelease(t *testing.T) {
	s, engine := serve(t)
	r := open(t, s)
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	r.mustPut("key", data)
	status, reply := r.do(message.Lookup, message.Request{NumKeys: 2}, table("none", "key"))
	require.Equal(t, message.OK, status)
	var miss, hit message.Entry
	require.NoError(t, miss.Decode(reply[:message.LookupBytes]))
	require.NoError(t, hit.Decode(reply[message.LookupBytes:]))
	require.Equal(t, message.Miss, miss.Status)
	require.EqualValues(t, len(data), hit.Bytes)
	status, _ = r.do(message.Delete, message.Request{NumKeys: 1}, table("key"))
	require.Equal(t, message.OK, status)
	read := func(off uint64, n int) (message.Status, []byte) {
		return r.do(message.Read, message.Request{Handle: hit.Handle, Offset: off, Bytes: uint32(n)}, nil)
	}
	status, b := read(77, message.PartBytes)
	require.Equal(t, message.OK, status)
	require.Equal(t, data[77:77+message.PartBytes], b)
	status, _ = read(uint64(len(data))-1, 2)
	require.Equal(t, message.Malformed, status)
	status, _ = read(1<<64-1, 2)
	require.Equal(t, message.Malformed, status)
	status, _ = r.do(message.Release, message.Request{NumKeys: 2}, message.AppendHandle(message.AppendHandle(nil, 5), hit.Handle))
	require.Equal(t, message.OK, status)
	quiet(t, engine)
	status, _ = read(0, 1)
	require.Equal(t, message.Unknown, status)
	r.mustPut("other", data)
	status, _ = r.do(message.Lookup, message.Request{NumKeys: 1}, table("other"))
	require.Equal(t, message.OK, status)
	status, _ = read(0, 1)
	require.Equal(t, message.Unknown, status, "another handle has its place")
}

// A lease that is released while it is read is there until the last byte has left.
func TestReleaseWhileReading(t *testing.T) {
	const num = 25 // more than what sockets hold
	s, engine := serve(t)
	r := open(t, s)
	data := make([]byte, message.PartBytes)
	data[77] = 7
	r.mustPut("key", data)
	_, reply := r.do(message.Lookup, message.Request{NumKeys: 1}, table("key"))
	var e message.Entry
	require.NoError(t, e.Decode(reply))
	add := func(code message.Code, said message.Request, payload []byte) {
		head := wire.Head{Code: code, Extra: said.Encode(make([]byte, message.RequestBytes))}
		require.NoError(t, r.out.Append(&head, [][]byte{payload}))
	}
	for range num {
		add(message.Read, message.Request{Handle: e.Handle, Bytes: message.PartBytes}, nil)
	}
	add(message.Release, message.Request{NumKeys: 1}, message.AppendHandle(nil, e.Handle))
	require.NoError(t, r.out.Flush())
	require.Eventually(t, func() bool { return s.Counters().Requests(message.Release) == 1 }, 20*time.Second, time.Millisecond)
	time.Sleep(10 * time.Millisecond) // it is counted before it is done
	open, _, _ := engine.Counts()
	require.Equal(t, 1, open)
	for range num {
		_, b := r.readReply()
		require.Equal(t, data, b)
	}
	r.readReply()
	quiet(t, engine)
}
