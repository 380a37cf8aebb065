package server_test

import (
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
	return greet(t, nc, change...)
}

// greet begins a session over a connection.
func greet(t testing.TB, nc net.Conn, change ...func(*wire.Config)) (r *raw, err error) {
	t.Helper()
	cfg := wire.Config{Keys: keyring(t), Ordered: true, MaxPayloadBytes: message.MaxPayloadBytes, Blob: message.Hello()}
	for _, f := range change {
		f(&cfg)
	}
	r = &raw{t: t, nc: nc}
	r.session, err = stream.Handshake(nc, wire.RoleClient, cfg, time.Now().Add(20*time.Second))
	if err != nil {
		return nil, err
	}
	r.in = stream.NewReader(nc, r.session, stream.Limits{Idle: time.Minute, Total: time.Minute})
	r.out = stream.NewWriter(nc, r.session, stream.Limits{Idle: time.Minute, Total: time.Minute}, nil)
	return r, nil
}

// open makes a client with a namespace.
func open(t testing.TB, s *server.Server, change ...func(*wire.Config)) *raw {
	t.Helper()
	r, err := connect(t, s, change...)
	require.NoError(t, err)
	r.enter()
	return r
}

// enter opens the namespace.
func (r *raw) enter() {
	r.t.Helper()
	status, reply := r.do(message.Open, message.Request{}, name.Append(nil))
	require.Equal(r.t, message.OK, status)
	require.NoError(r.t, r.opened.Decode(reply))
	r.tagger = tag.New(r.opened.TagKey.Mask(r.session.Export(message.TagSecret)), name.Digest())
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

// readReply reads the next reply.
func (r *raw) readReply() (wire.Head, []byte) {
	r.t.Helper()
	head, err := r.in.Next()
	require.NoError(r.t, err)
	b := make([]byte, head.PayloadBytes)
	require.NoError(r.t, r.in.ReadBlock(b))
	require.NoError(r.t, r.in.End())
	require.True(r.t, head.Reply)
	require.Equal(r.t, message.Status(head.Status).Refuses(), head.Refused)
	return head, b
}

func (r *raw) do(code message.Code, said message.Request, payload []byte) (message.Status, []byte) {
	r.t.Helper()
	r.say(code, said, payload)
	head, b := r.readReply()
	require.Equal(r.t, r.last, head.Request)
	require.Equal(r.t, code, head.Code)
	return message.Status(head.Status), b
}

// put says what a put of a block says.
func (r *raw) put(key string, data []byte) (message.Request, []byte) {
	said := message.Request{KeyBytes: uint16(len(key)), Bytes: uint32(len(data)), Tag: r.tagger.Of([]byte(key), data)}
	return said, append([]byte(key), data...)
}

// sealedPut is a put of a block as bytes; its digest leaves out so many at the end.
func (r *raw) sealedPut(key string, block []byte, apart int) []byte {
	r.t.Helper()
	said, payload := r.put(key, block)
	said.Namespace = r.opened.Namespace
	head := wire.Head{
		Code: message.Put, Request: 9, Extra: said.Encode(make([]byte, message.RequestBytes)), ApartBytes: uint32(apart),
	}
	frame, err := r.session.Seal(nil, &head, payload)
	require.NoError(r.t, err)
	return append(frame, payload...)
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

// quiet waits until nothing of the engine is open.
func quiet(t testing.TB, e *servertest.Engine) {
	t.Helper()
	require.Eventually(t, func() bool { open, _, _ := e.Counts(); return open == 0 }, 20*time.Second, time.Millisecond)
}
