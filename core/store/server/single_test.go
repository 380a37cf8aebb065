package server_test

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// asker makes single requests from docs/wire.md alone.
type asker struct {
	t      testing.TB
	nc     net.Conn
	id     byte
	key    []byte
	life   []byte
	client [16]byte
	number uint64
}

func dialSingle(t testing.TB, s *server.Server) *asker {
	t.Helper()
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	a := &asker{t: t, nc: nc, life: make([]byte, 16)}
	a.use(1, strings.Fields(keyText)[1])
	_, _ = rand.Read(a.client[:])
	return a
}

// use signs with another key from now on.
func (a *asker) use(id byte, secret string) {
	raw, err := hex.DecodeString(secret)
	require.NoError(a.t, err)
	a.id = id
	a.key, err = hkdf.Key(sha256.New, raw, nil, "moewire 2 single", 32)
	require.NoError(a.t, err)
}

// asks is a client that knows the server's life.
func asks(t testing.TB, s *server.Server) *asker {
	t.Helper()
	a := dialSingle(t, s)
	status, said := a.do(message.Open, nil, nil)
	require.Equal(t, message.OK, status)
	require.Len(t, said, 20)
	require.EqualValues(t, 16<<20, binary.LittleEndian.Uint32(said[16:]))
	a.life = said[:16]
	return a
}

// frame is the next request, its payload included.
func (a *asker) frame(code message.Code, extra, payload []byte) []byte {
	a.number++
	sum := sha256.Sum256(payload)
	b := append([]byte{2, 7, 0, code}, a.id, 0, 0, 0)
	b = append(append(b, a.life...), a.client[:]...)
	b = append(binary.LittleEndian.AppendUint64(b, a.number), sum[:]...)
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(payload))), 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(append(b, extra...), uint64(time.Now().UnixNano()))
	b = append(b, a.sign(b)...)
	return append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...), payload...)
}

func (a *asker) sign(b []byte) []byte {
	mac := hmac.New(sha256.New, a.key)
	mac.Write(b)
	return mac.Sum(nil)
}

// do asks.
func (a *asker) do(code message.Code, extra, payload []byte) (message.Status, []byte) {
	a.t.Helper()
	_, err := a.nc.Write(a.frame(code, extra, payload))
	require.NoError(a.t, err)
	return a.readReply(code)
}

// readReply reads the reply to the last request, and checks it.
func (a *asker) readReply(code message.Code) (message.Status, []byte) {
	a.t.Helper()
	var length [4]byte
	_, err := io.ReadFull(a.nc, length[:])
	require.NoError(a.t, err)
	require.EqualValues(a.t, 128, binary.LittleEndian.Uint32(length[:]))
	b := make([]byte, 128)
	_, err = io.ReadFull(a.nc, b)
	require.NoError(a.t, err)
	require.Equal(a.t, a.sign(b[:96]), b[96:])
	require.Equal(a.t, []byte{2, 7, 1, code, a.id, 0, 0, 0}, b[:8])
	require.Equal(a.t, a.client[:], b[24:40])
	require.Equal(a.t, a.number, binary.LittleEndian.Uint64(b[40:]))
	reply := make([]byte, binary.LittleEndian.Uint32(b[80:]))
	_, err = io.ReadFull(a.nc, reply)
	require.NoError(a.t, err)
	sum := sha256.Sum256(reply)
	require.Equal(a.t, sum[:], b[48:80])
	return message.Status(binary.LittleEndian.Uint16(b[84:])), reply
}

// of names a key of the namespace that raw clients have.
func of(key string) []byte {
	digest := name.Digest()
	return append(digest[:], key...)
}

// dropped reports whether the server has ended the connection without a word.
func (a *asker) dropped() {
	a.t.Helper()
	_ = a.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	b, err := io.ReadAll(a.nc)
	var expired net.Error
	if ok := err != nil && asNet(err, &expired); ok {
		require.False(a.t, expired.Timeout(), "it stays open")
	}
	require.Empty(a.t, b)
}

func asNet(err error, to *net.Error) bool {
	n, ok := err.(net.Error)
	*to = n
	return ok
}

// What a single request stores a session finds, and the reverse; what they answer is the same.
func TestSingles(t *testing.T) {
	s, e := serve(t)
	a, r := asks(t, s), open(t, s)
	for _, n := range []int{0, 1, 70_000, 3 << 20} {
		status, _ := a.do(message.Put, of("a"), noise(n))
		require.Equal(t, message.OK, status)
		status, got := a.do(message.Get, of("a"), nil)
		require.Equal(t, message.OK, status)
		require.Equal(t, noise(n), got)
		r.say(message.Get, message.Request{NumKeys: 1}, table("a"))
		for left := n + message.EntryBytes; left > 0; { // in parts
			_, b := r.readReply()
			left -= len(b)
			if left > 0 {
				left += message.EntryBytes
			}
		}
		status, _ = a.do(message.Put, of("a"), noise(n))
		require.Equal(t, message.Existing, status)
		status, _ = a.do(message.Put, of("a"), noise(n+1))
		require.Equal(t, message.Conflict, status)
		status, _ = a.do(message.Delete, of("a"), nil)
		require.Equal(t, message.OK, status)
		for _, code := range []message.Code{message.Get, message.Exists, message.Delete} {
			status, _ = a.do(code, of("a"), nil)
			require.Equal(t, message.Miss, status)
		}
	}
	r.mustPut("b", noise(333))
	status, got := a.do(message.Get, of("b"), nil)
	require.Equal(t, message.OK, status)
	require.Equal(t, noise(333), got)
	status, _ = a.do(message.Exists, append(make([]byte, 32), 'b'), nil) // another namespace
	require.Equal(t, message.Miss, status)
	e.Spoil("b")
	status, _ = a.do(message.Get, of("b"), nil)
	require.Equal(t, message.Miss, status)
	require.EqualValues(t, 1, s.Counters().BadReads.Load())
	quiet(t, e)
}

// What is genuine and cannot be served is answered, and the connection goes on.
func TestSinglesThatCannotBe(t *testing.T) {
	s, _ := serve(t)
	a := asks(t, s)
	for what, c := range map[string]struct {
		code           message.Code
		extra, payload []byte
		want           message.Status
	}{
		"no key":           {message.Get, of(""), nil, message.Malformed},
		"half a namespace": {message.Get, make([]byte, 31), nil, message.Malformed},
		"a long key":       {message.Get, of(strings.Repeat("k", 513)), nil, message.Malformed},
		"get with payload": {message.Get, of("k"), []byte{1}, message.Malformed},
		"open with a key":  {message.Open, of("k"), nil, message.Malformed},
		"pin":              {message.Pin, of("k"), nil, message.Unknown},
	} {
		status, _ := a.do(c.code, c.extra, c.payload)
		require.Equal(t, c.want, status, what)
	}
	_, err := a.nc.Write(a.frame(message.Put, of("k"), make([]byte, 16<<20+1))[:300])
	require.NoError(t, err)
	a.dropped()
}

// WF3: whatever bit of a put is flipped, nothing is stored, nothing is said, and it is counted.
func TestEveryBitOfASingle(t *testing.T) {
	s, e := serve(t)
	good := asks(t, s)
	total := len(good.frame(message.Put, of("key"), []byte("block")))
	for bit := range 8 * total {
		a := dialSingle(t, s)
		a.life = good.life
		frame := a.frame(message.Put, of("key"), []byte("block"))
		frame[bit/8] ^= 1 << (bit % 8)
		before := numRefused(s)
		_, _ = a.nc.Write(frame) // the server may have seen enough already
		_ = a.nc.(*net.TCPConn).CloseWrite()
		a.dropped()
		require.Greater(t, numRefused(s), before, "bit %d", bit)
	}
	status, _ := good.do(message.Exists, of("key"), nil)
	require.Equal(t, message.Miss, status)
	require.NotZero(t, s.Refusals().Refused(wire.ErrMAC))
	require.EqualValues(t, 8*5, s.Refusals().Refused(wire.ErrPayload))
	quiet(t, e)
}

// numRefused counts frames that were refused, for whatever reason, and connections that ended before they had said one.
func numRefused(s *server.Server) uint64 {
	c := s.Counters()
	n := c.Unauthenticated.Load()
	s.Refusals().Each(func(_ wire.Reason, k uint64) { n += k })
	return n
}

// WF1: a request that was made does nothing when it comes again: over its connection, over
// another one, at the next life of the server.
func TestSinglesComeOnce(t *testing.T) {
	s, e := serve(t)
	a := asks(t, s)
	status, _ := a.do(message.Put, of("key"), []byte("block"))
	require.Equal(t, message.OK, status)
	a.number++
	deletes := a.frame(message.Delete, of("key"), nil)
	_, err := a.nc.Write(append(deletes, deletes...))
	require.NoError(t, err)
	b, err := io.ReadAll(a.nc)
	require.NoError(t, err)
	require.Len(t, b, 132, "one reply")
	again, _ := serve(t, func(c *server.Config) { c.Store = e })
	for _, at := range []*server.Server{s, again} {
		r := open(t, at)
		r.mustPut("key", []byte("block"))
		b := dialSingle(t, at)
		_, err = b.nc.Write(deletes)
		require.NoError(t, err)
		b.dropped()
		require.Equal(t, 1, r.exists("key"))
		status, _ := r.do(message.Delete, message.Request{NumKeys: 1}, table("key"))
		require.Equal(t, message.OK, status)
	}
	require.EqualValues(t, 2, s.Refusals().Refused(wire.ErrReplay))
	require.EqualValues(t, 1, again.Refusals().Refused(wire.ErrSession))
}

// There are so many connections of single requests; sessions are not kept out by them.
func TestSinglesAreBounded(t *testing.T) {
	s, _ := serve(t)
	for range 8 {
		asks(t, s)
	}
	a := dialSingle(t, s)
	_, err := a.nc.Write(a.frame(message.Open, nil, nil))
	require.NoError(t, err)
	a.dropped()
	require.EqualValues(t, 1, s.Counters().TooManyClients.Load())
	open(t, s)
}

// A server that was told so has sessions only.
func TestNoSingles(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.NoSingles = true })
	a := dialSingle(t, s)
	_, err := a.nc.Write(a.frame(message.Open, nil, nil))
	require.NoError(t, err)
	_ = a.nc.(*net.TCPConn).CloseWrite()
	_, err = io.Copy(io.Discard, a.nc)
	require.NotErrorIs(t, err, timeout{})
	require.EqualValues(t, 1, s.Counters().Unauthenticated.Load())
}

// A drain does not wait for a connection that asks for nothing.
func TestDrainEndsSingles(t *testing.T) {
	s, _ := serve(t)
	a := asks(t, s)
	done := make(chan struct{})
	go func() { s.Drain(time.Now().Add(time.Hour)); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		require.Fail(t, "it waits")
	}
	a.dropped()
}
