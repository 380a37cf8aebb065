package client

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// liar is a server that has the key and answers each request with what it is told to.
type liar struct {
	head    wire.Head
	payload []byte
	keys    *wire.Keyring
	secret  [32]byte
	heard   func(head wire.Head) (answered bool) // what is asked for; nil: all is answered
	pause   time.Duration                        // before it reads so much of what it is sent
	portion int
}

// Read reads slowly, if the liar is slow.
func (s *slow) Read(p []byte) (int, error) {
	time.Sleep(s.pause)
	return s.Conn.Read(p[:min(len(p), s.portion)])
}

type slow struct {
	net.Conn
	*liar
}

var liarsKey = tag.Key{1, 2, 3}

func (s *liar) dial(context.Context, string) (Conn, error) {
	clientEnd, serverEnd := net.Pipe()
	go func() {
		defer serverEnd.Close()
		guard, _ := wire.NewGuard(0)
		session, err := stream.Handshake(serverEnd, wire.RoleServer, wire.Config{
			Keys: s.keys, Ordered: true, MaxPayloadBytes: message.MaxPayloadBytes, Guard: guard, Blob: message.Hello(),
		}, time.Now().Add(testTimeout))
		if err != nil {
			return
		}
		s.secret = session.Export(message.TagSecret)
		var from net.Conn = serverEnd
		if s.pause > 0 {
			from = &slow{serverEnd, s}
		}
		s.serve(stream.NewReader(from, session, stream.Limits{Idle: testTimeout, Total: testTimeout}), stream.NewWriter(serverEnd, session, stream.Limits{Idle: testTimeout, Total: testTimeout}, nil))
	}()
	return clientEnd, nil
}

func (s *liar) serve(in *stream.Reader, out *stream.Writer) {
	for {
		request, err := in.Next()
		if err != nil || in.End() != nil {
			return
		}
		if s.heard != nil && !s.heard(request) {
			continue
		}
		head, payload := s.head, s.payload
		if request.Code == message.Open {
			o := message.Opened{NumKeys: 512, BatchBytes: 1 << 20, BlockBytes: 1 << 20, Contexts: 4, TagKey: liarsKey.Mask(s.secret)}
			head, payload = wire.Head{Code: message.Open, Reply: true}, o.Encode(make([]byte, message.OpenedBytes))
		}
		head.Request = request.Request
		if out.Append(&head, [][]byte{payload}) != nil || out.Flush() != nil {
			return
		}
	}
}

// FuzzHostileServer: whatever a server answers, a request completes, nothing panics, and no
// byte is taken for a block's that its tag does not fit.
func FuzzHostileServer(f *testing.F) {
	ring := keys(f, keyA)
	block := []byte("block")
	right := tag.New(liarsKey, (&message.Namespace{}).Digest()).Of([]byte("key"), block)
	e := message.Entry{Bytes: 5, Tag: right}
	miss := message.Entry{Status: message.Miss}
	p := message.Part{NumKeys: 2, Last: true}
	extra := p.Encode(make([]byte, message.PartExtraBytes))
	f.Add(byte(message.Get), uint16(0), false, uint32(5), extra, append(miss.Append(e.Append(nil)), block...))
	f.Add(byte(message.Exists), uint16(0), false, uint32(0), []byte(nil), message.AppendFound(nil, 1, []bool{true, false}))
	f.Add(byte(message.Get), uint16(7), true, uint32(0), []byte(nil), []byte("text"))
	f.Fuzz(func(t *testing.T, code byte, status uint16, refused bool, apart uint32, extra, payload []byte) {
		s := &liar{
			head: wire.Head{
				Code: code, Status: status, Reply: true, Refused: refused,
				ApartBytes: apart % uint32(len(payload)+1), Extra: extra[:min(len(extra), wire.MaxExtraBytes)],
			},
			payload: payload, keys: ring,
		}
		c, err := Open(Config{
			Servers: []string{"liar"}, Carrier: CarrierTCP, Keys: ring, Dial: s.dial, Timeout: 20 * time.Millisecond, Connect: testTimeout, ProbeMin: time.Hour, ProbeMax: time.Hour,
		})
		require.NoError(t, err)
		into := [][][]byte{{make([]byte, 5)}, {make([]byte, 5)}}
		r := Request{Op: message.Get, Keys: [][]byte{[]byte("key"), []byte("other")}, Buffers: into}
		if code != message.Get {
			r.Op, r.Buffers = message.Exists, nil
		}
		done, err := c.Do(r)
		require.NoError(t, err)
		if r.Op == message.Get && done.OK[0] {
			require.Equal(t, string(block), string(into[0][0]))
		}
		_, why := c.Up()
		for _, err := range why {
			var panicked *safego.PanicError
			require.False(t, errors.As(err, &panicked), "%v", err)
		}
		require.NoError(t, c.Close())
	})
}

// A part that does not begin where the one before has ended ends the connection: what a
// server leaves out must not look like an answer.
func TestPartsHaveAnOrder(t *testing.T) {
	block := []byte("block")
	e := message.Entry{Bytes: 5, Tag: tag.New(liarsKey, (&message.Namespace{}).Digest()).Of([]byte("other"), block)}
	p := message.Part{First: 1, NumKeys: 1, Last: true}
	s := &liar{
		head:    wire.Head{Code: message.Get, Reply: true, Extra: p.Encode(make([]byte, message.PartExtraBytes))},
		payload: append(e.Append(nil), block...), keys: keys(t, keyA),
	}
	c, err := Open(Config{Servers: []string{"liar"}, Carrier: CarrierTCP, Keys: s.keys, Dial: s.dial, Timeout: testTimeout, Connect: testTimeout, ProbeMin: time.Hour, ProbeMax: time.Hour})
	require.NoError(t, err)
	done, err := c.Do(Request{Op: message.Get, Keys: [][]byte{[]byte("key"), []byte("other")}})
	require.NoError(t, err)
	require.Equal(t, []bool{false, false}, done.OK)
	require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, testTimeout, time.Millisecond)
	require.NoError(t, c.Close())
}
