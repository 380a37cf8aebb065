package server_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

const keyText = "1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func keyring(t testing.TB) *wire.Keyring {
	t.Helper()
	r, err := wire.NewKeyring(func() ([]byte, error) { return []byte(keyText), nil })
	require.NoError(t, err)
	return r
}

func serve(t testing.TB, change ...func(*server.Config)) (*server.Server, *servertest.Engine) {
	t.Helper()
	engine := servertest.New()
	cfg := server.Config{Store: engine, Addr: "127.0.0.1:0", Keys: keyring(t), Storage: 1, Handshake: 20 * time.Second}
	for _, f := range change {
		f(&cfg)
	}
	s, err := server.Listen(cfg)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s, engine
}

// raw is a client that says what it wants.
type raw struct {
	t       testing.TB
	nc      net.Conn
	session *wire.Session
	in      *stream.Reader
	out     *stream.Writer
	last    uint64
	opened  message.Opened
	tagger  *tag.Tagger
}

var name = message.Namespace{Model: "m"}

func connect(t testing.TB, s *server.Server, change ...func(*wire.Config)) (*raw, error) {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	cfg := wire.Config{Keys: keyring(t), Ordered: true, MaxPayloadBytes: message.MaxPayloadBytes, Blob: message.Hello()}
	for _, f := range change {
		f(&cfg)
	}
	r := &raw{t: t, nc: nc, tagger: tag.New(name.Digest())}
	r.session, err = stream.Handshake(nc, wire.RoleClient, cfg, time.Now().Add(20*time.Second))
	if err != nil {
		return nil, err
	}
	r.in = stream.NewReader(nc, r.session, stream.Limits{Idle: time.Minute, Total: time.Minute})
	r.out = stream.NewWriter(nc, r.session, time.Minute, nil)
	return r, nil
}

// open makes a client with a namespace.
func open(t testing.TB, s *server.Server) *raw {
	t.Helper()
	r, err := connect(t, s)
	require.NoError(t, err)
	status, reply := r.do(message.Open, message.Request{}, name.Append(nil))
	require.Equal(t, message.OK, status)
	require.NoError(t, r.opened.Decode(reply))
	return r
}

// say sends a request.
func (r *raw) say(code message.Code, said message.Request, payload []byte) {
	r.t.Helper()
	r.last++
	said.Namespace = r.opened.Namespace
	head := wire.Head{Code: code, Request: r.last, Extra: said.Encode(make([]byte, message.RequestBytes))}
	require.NoError(r.t, r.out.Append(&head, [][]byte{payload}))
	require.NoError(r.t, r.out.Flush())
}

// hear reads the next reply.
func (r *raw) hear() (wire.Head, []byte) {
	r.t.Helper()
	head, err := r.in.Next()
	require.NoError(r.t, err)
	b := make([]byte, head.PayloadBytes)
	require.NoError(r.t, r.in.Read(b))
	require.NoError(r.t, r.in.End())
	require.True(r.t, head.Reply)
	require.Equal(r.t, message.Status(head.Status).Refuses(), head.Refused)
	return head, b
}

func (r *raw) do(code message.Code, said message.Request, payload []byte) (message.Status, []byte) {
	r.t.Helper()
	r.say(code, said, payload)
	head, b := r.hear()
	require.Equal(r.t, r.last, head.Request)
	require.Equal(r.t, code, head.Code)
	return message.Status(head.Status), b
}

// put says what a put of a block says.
func (r *raw) put(key string, data []byte) (message.Request, []byte) {
	said := message.Request{KeyBytes: uint16(len(key)), Bytes: uint32(len(data)), Tag: r.tagger.Of([]byte(key), data)}
	return said, append([]byte(key), data...)
}

func (r *raw) mustPut(key string, data []byte) {
	r.t.Helper()
	said, payload := r.put(key, data)
	status, _ := r.do(message.Put, said, payload)
	require.Equal(r.t, message.OK, status)
}

func (r *raw) exists(keys ...string) int {
	r.t.Helper()
	status, b := r.do(message.Exists, message.Request{NumKeys: uint16(len(keys))}, table(keys...))
	require.Equal(r.t, message.OK, status)
	n, err := message.Found(b, make([]bool, len(keys)))
	require.NoError(r.t, err)
	return n
}

func table(keys ...string) (b []byte) {
	for _, k := range keys {
		b = message.AppendKey(b, []byte(k))
	}
	return b
}

// gone waits until the server has ended the connection.
func (r *raw) gone() {
	r.t.Helper()
	_ = r.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := io.Copy(io.Discard, r.nc)
	require.NotErrorIs(r.t, err, timeout{})
}

type timeout struct{}

func (timeout) Error() string { return "" }

func (timeout) Is(err error) bool { n, ok := err.(net.Error); return ok && n.Timeout() }

// quiet waits until nothing of the engine is open.
func quiet(t testing.TB, e *servertest.Engine) {
	t.Helper()
	require.Eventually(t, func() bool { open, _, _ := e.Counts(); return open == 0 }, 20*time.Second, time.Millisecond)
}

func TestOpenSaysWhatThereIs(t *testing.T) {
	s, _ := serve(t)
	a, b := open(t, s), open(t, s)
	require.Equal(t, a.opened, b.opened)
	require.EqualValues(t, 32, a.opened.Contexts)
	require.EqualValues(t, 16<<20, a.opened.BlockBytes)
	require.NotZero(t, a.opened.Boot)
	other, _ := serve(t)
	require.NotEqual(t, a.opened.Boot, open(t, other).opened.Boot)
}

// What cannot be served is refused and counted, and the connection goes on.
func TestRefusals(t *testing.T) {
	s, engine := serve(t)
	r := open(t, s)
	long := make([]byte, message.MaxKeyBytes+1)
	for what, c := range map[string]struct {
		code    message.Code
		said    message.Request
		payload []byte
		want    message.Status
	}{
		"unknown code":      {0x77, message.Request{}, []byte("abc"), message.Unknown},
		"no keys":           {message.Get, message.Request{}, nil, message.Malformed},
		"too many keys":     {message.Get, message.Request{NumKeys: 513}, make([]byte, 2000), message.Malformed},
		"short table":       {message.Get, message.Request{NumKeys: 2}, table("abcdef"), message.Malformed},
		"long table":        {message.Exists, message.Request{NumKeys: 1}, table("a", "b"), message.Malformed},
		"empty key":         {message.Delete, message.Request{NumKeys: 2}, table("", "b"), message.Malformed},
		"long key":          {message.Delete, message.Request{NumKeys: 2}, table(string(long), "b"), message.Malformed},
		"a flag":            {message.Exists, message.Request{NumKeys: 1, Flags: 1}, table("a"), message.Malformed},
		"put without key":   {message.Put, message.Request{Bytes: 3}, []byte("abc"), message.Malformed},
		"put of other size": {message.Put, message.Request{KeyBytes: 1, Bytes: 3}, []byte("kab"), message.Malformed},
		"wrong tag":         {message.Put, message.Request{KeyBytes: 1, Bytes: 3}, []byte("kabc"), message.BadTag},
		"no such handle":    {message.Commit, message.Request{Handle: 1 << 40}, nil, message.Unknown},
		"no such lease":     {message.Read, message.Request{Handle: 3, Bytes: 3}, nil, message.Unknown},
		"write to nothing":  {message.Write, message.Request{Handle: 7, Bytes: 3}, []byte("abc"), message.Unknown},
		"too large":         {message.Put, message.Request{KeyBytes: 1, Bytes: 17 << 20}, make([]byte, 17<<20+1), message.TooLarge},
		"bad namespace":     {message.Open, message.Request{}, []byte("abc"), message.Malformed},
	} {
		before := s.Counters().Replies(c.want)
		status, _ := r.do(c.code, c.said, c.payload)
		require.Equal(t, c.want, status, what)
		require.Equal(t, before+1, s.Counters().Replies(c.want), what)
	}
	r.opened.Namespace = 1
	status, _ := r.do(message.Exists, message.Request{NumKeys: 1}, table("a"))
	require.Equal(t, message.Unknown, status, "a namespace that was not opened")
	r.opened.Namespace = 0
	require.Zero(t, r.exists("k"), "nothing was stored")
	quiet(t, engine)
	require.EqualValues(t, 1, s.Counters().BadPuts.Load())
}

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
		_, b := r.hear()
		require.Equal(t, data, b)
	}
	r.hear()
	quiet(t, engine)
}

// SC2: as many requests run at a time as were granted; the others would block, at once, and
// are counted.
func TestCredits(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Contexts = 2 })
	engine.FlushFor = time.Hour
	r := open(t, s)
	for range 20 {
		r.say(message.Flush, message.Request{DeadlineUs: 500_000}, nil)
	}
	statuses := map[message.Status]int{}
	for range 20 {
		head, _ := r.hear()
		statuses[message.Status(head.Status)]++
	}
	require.Equal(t, 3, statuses[message.OK], "%v", statuses)
	require.Equal(t, 17, statuses[message.WouldBlock], "%v", statuses)
	require.EqualValues(t, 17, s.Counters().Capped.Load())
	require.Zero(t, r.exists("a"), "there is room again")
}

// SC1: so it is with all connections together.
func TestCreditsOfAll(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.AllContext = 2 })
	engine.FlushFor = time.Hour
	a, b, other := open(t, s), open(t, s), open(t, s)
	a.say(message.Flush, message.Request{DeadlineUs: 2_000_000}, nil)
	b.say(message.Flush, message.Request{DeadlineUs: 2_000_000}, nil)
	require.Eventually(t, func() bool { return s.Stats().Running == 2 }, 20*time.Second, time.Millisecond)
	status, _ := other.do(message.Exists, message.Request{NumKeys: 1}, table("a"))
	require.Equal(t, message.WouldBlock, status)
	a.hear()
	b.hear()
	other.exists("a")
}

// A client that asks and does not read loses its connection after a while, with what it
// held. Others are served meanwhile.
func TestClientThatDoesNotRead(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle = 300 * time.Millisecond })
	r, other := open(t, s), open(t, s)
	other.mustPut("key", make([]byte, 4<<20))
	for range 16 {
		r.say(message.Get, message.Request{NumKeys: 8}, table("key", "key", "key", "key", "key", "key", "key", "key"))
	}
	require.Eventually(t, func() bool {
		require.Equal(t, 1, other.exists("key"))
		return s.Counters().Idle.Load() == 1 && s.Stats().Clients == 1
	}, 30*time.Second, time.Millisecond)
	quiet(t, engine)
	require.Zero(t, s.Stats().Running)
}

// A client that stops in the middle of a block loses its connection, and the block its room.
func TestClientThatStopsInAPut(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle = 200 * time.Millisecond })
	r := open(t, s)
	said, payload := r.put("key", make([]byte, 1<<20))
	head := wire.Head{Code: message.Put, Request: 9, Extra: said.Encode(make([]byte, message.RequestBytes))}
	frame, err := r.session.Seal(nil, &head, payload)
	require.NoError(t, err)
	_, err = r.nc.Write(append(frame, payload[:1000]...))
	require.NoError(t, err)
	r.gone()
	quiet(t, engine)
	require.EqualValues(t, 1, s.Counters().Idle.Load())
	require.Zero(t, open(t, s).exists("key"))
}

// One that sends a byte now and then is not idle, but its message has an end.
func TestSlowLoris(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.Idle, c.Total = 10*time.Second, 300*time.Millisecond })
	r := open(t, s)
	var err error
	for range 10_000 {
		if _, err = r.nc.Write([]byte{0xd0}[:1]); err != nil {
			break
		}
		if s.Counters().Lost.Load() > 0 {
			return // as nonsense or as late
		}
		time.Sleep(5 * time.Millisecond)
	}
	require.Error(t, err)
}

// Who does not authenticate is gone after a while, and more of them than may be push out the
// oldest; a client that has the key is served all the time.
func TestUnknownClients(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.Handshake, c.MaxPending = 10*time.Second, 4 })
	var idle []net.Conn
	for range 12 {
		nc, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer nc.Close()
		idle = append(idle, nc)
	}
	require.Eventually(t, func() bool { return s.Counters().Crowded.Load() == 8 }, 20*time.Second, time.Millisecond)
	_ = idle[0].SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := idle[0].Read(make([]byte, 1))
	require.Error(t, err)
	open(t, s).exists("a")
}

func TestHandshakeHasADeadline(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.Handshake = 100 * time.Millisecond })
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	_ = nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Eventually(t, func() bool { return s.Counters().Unauthenticated.Load() == 1 }, 20*time.Second, time.Millisecond)
}

func TestTooManyClients(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.MaxClients = 2 })
	a, b := open(t, s), open(t, s)
	r, err := connect(t, s)
	if err == nil {
		r.gone()
	}
	require.Eventually(t, func() bool { return s.Counters().TooManyClients.Load() == 1 }, 20*time.Second, time.Millisecond)
	a.exists("a")
	require.NoError(t, b.nc.Close())
	require.Eventually(t, func() bool { return s.Stats().Clients == 1 }, 20*time.Second, time.Millisecond)
	open(t, s).exists("a")
}

// Another key gets no answer, another format an authenticated refusal.
func TestOtherKeyOtherFormat(t *testing.T) {
	s, _ := serve(t)
	other, err := wire.NewKeyring(func() ([]byte, error) { return []byte("1 ff" + keyText[4:]), nil })
	require.NoError(t, err)
	_, err = connect(t, s, func(c *wire.Config) { c.Keys = other })
	require.ErrorIs(t, err, stream.ErrSilent)
	require.Eventually(t, func() bool { return s.Refusals().Refused(wire.ErrMAC) == 1 }, 20*time.Second, time.Millisecond)
	_, err = connect(t, s, func(c *wire.Config) { c.Blob = []byte{'M', 'W', 'S', 'T', message.Version + 1, 0} })
	require.ErrorIs(t, err, wire.ErrDeclined)
	require.EqualValues(t, 1, s.Counters().OtherVersion.Load())
	_, err = connect(t, s, func(c *wire.Config) { c.Protection = wire.ProtectEncrypt })
	require.ErrorIs(t, err, wire.ErrProtection)
}

// A flush ends when the server says so, whatever its client wants, so that Close does not
// wait for a disk that hangs.
func TestFlushIsBounded(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Total = 100 * time.Millisecond })
	engine.FlushFor = time.Hour
	r := open(t, s)
	start := time.Now()
	r.do(message.Flush, message.Request{DeadlineUs: 1<<32 - 1}, nil)
	require.Less(t, time.Since(start), 20*time.Second)
}

// Drain lets what runs end and is answered, and takes nothing new.
func TestDrain(t *testing.T) {
	s, engine := serve(t)
	engine.FlushFor = 200 * time.Millisecond
	r := open(t, s)
	r.say(message.Flush, message.Request{}, nil)
	require.Eventually(t, func() bool { return s.Stats().Running == 1 }, 20*time.Second, time.Millisecond)
	done := make(chan struct{})
	go func() { s.Drain(time.Now().Add(20 * time.Second)); close(done) }()
	head, _ := r.hear()
	require.Equal(t, message.OK, message.Status(head.Status))
	r.gone()
	<-done
	_, err := net.Dial("tcp", s.Addr().String())
	require.Error(t, err)
	s.Close()
}

// At its deadline a drain ends what does not end by itself.
func TestDrainHasADeadline(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle, c.Total = time.Hour, time.Hour })
	r := open(t, s)
	said, payload := r.put("key", make([]byte, 1<<20))
	head := wire.Head{Code: message.Put, Request: 9, Extra: said.Encode(make([]byte, message.RequestBytes))}
	frame, err := r.session.Seal(nil, &head, payload)
	require.NoError(t, err)
	_, err = r.nc.Write(append(frame, payload[:1000]...))
	require.NoError(t, err)
	require.Eventually(t, func() bool { open, _, _ := engine.Counts(); return open == 1 }, 20*time.Second, time.Millisecond)
	s.Drain(time.Now().Add(100 * time.Millisecond))
	quiet(t, engine)
}

// WF3: whatever bit of a request is flipped, nothing is done.
func TestEveryBit(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle = 100 * time.Millisecond })
	probe := open(t, s)
	bits := 8 * (wire.MaxFrameBytes - wire.MaxExtraBytes + message.RequestBytes + 8)
	step := 7
	if testing.Short() {
		step = 61
	}
	for bit := 0; bit < bits; bit += step {
		r := open(t, s)
		said, payload := r.put("key", []byte("bytes"))
		head := wire.Head{Code: message.Put, Request: 9, Extra: said.Encode(make([]byte, message.RequestBytes))}
		frame, err := r.session.Seal(nil, &head, payload)
		require.NoError(t, err)
		sent := append(frame, payload...)
		require.Equal(t, bits/8, len(sent))
		sent[bit/8] ^= 1 << (bit % 8)
		_, err = r.nc.Write(sent)
		require.NoError(t, err)
		r.gone()
		require.Zero(t, probe.exists("key"), "bit %d", bit)
	}
	quiet(t, engine)
}

// Clients with as many namespaces as may be get no more of them, and know each by its fields.
func TestNamespaces(t *testing.T) {
	s, _ := serve(t)
	r := open(t, s)
	r.mustPut("key", []byte("data"))
	for i := range 15 {
		other := message.Namespace{Model: "m", Salt: fmt.Sprint(i)}
		status, reply := r.do(message.Open, message.Request{}, other.Append(nil))
		require.Equal(t, message.OK, status)
		require.NoError(t, r.opened.Decode(reply))
		require.Zero(t, r.exists("key"))
	}
	status, _ := r.do(message.Open, message.Request{}, (&message.Namespace{Model: "x"}).Append(nil))
	require.Equal(t, message.Quota, status)
	status, reply := r.do(message.Open, message.Request{}, name.Append(nil))
	require.Equal(t, message.OK, status, "it is known")
	require.NoError(t, r.opened.Decode(reply))
	require.Equal(t, 1, r.exists("key"))
}
