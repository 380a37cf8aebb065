package tcp

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// impostor is a peer that has the key and says what it likes.
type impostor struct {
	t       testing.TB
	conn    net.Conn
	session *wire.Session
	tr      *Transport
	ep      *endpoint
	region  transport.Region
}

func newImpostor(t testing.TB) *impostor { return newImpostorOf(t, Config{}) }

func newImpostorOf(t testing.TB, config Config) *impostor {
	ring := wire.GenerateKeyring()
	config.Keyring = ring
	x := &impostor{t: t, tr: openOne(t, config)}
	ep, err := x.tr.NewEndpoint(transport.EndpointSpec{SendDepth: 4, RecvDepth: 4})
	require.NoError(t, err)
	x.ep = ep.(*endpoint)
	x.region, err = x.tr.Register(make([]byte, 4096), transport.AccessRead|transport.AccessWrite)
	require.NoError(t, err)
	_, err = ep.PostRecv([]transport.RecvRequest{{ID: 1, Local: []transport.Piece{{Region: x.region, Bytes: 100}}}, {ID: 2}})
	require.NoError(t, err)
	x.conn, err = net.Dial("tcp", x.tr.listener.addrs[0].String())
	require.NoError(t, err)
	client := clientConfig(ring, join{to: x.ep.token, num: 1, sendDepth: 4, recvDepth: 4})
	x.session, err = shakeHands(x.conn, client)
	require.NoError(t, err)
	me := address{numSockets: 1, addrs: x.tr.addrs} // the smallest token
	require.NoError(t, ep.Connect(me.encode(), time.Now().Add(soon)))
	return x
}

// say sends a message that is genuine, whatever it says.
func (x *impostor) say(m message, payload []byte) {
	var extra [extraBytes]byte
	m.encode(&extra)
	frame, err := x.session.Seal(nil, &wire.Head{Code: m.code, Extra: extra[:]}, payload)
	if err == nil {
		_, _ = x.conn.Write(append(frame, payload...))
	}
}

// poll returns the completions so far, and whether the endpoint has failed.
func (x *impostor) poll() (done []transport.Completion, failed bool) {
	var list [16]transport.Completion
	n, err := x.tr.Poll(list[:])
	require.NoError(x.t, err)
	return list[:n], x.ep.is(transport.StateError)
}

// refused is how many of the impostor's messages were counted, by whatever reason.
func (x *impostor) refused() (sum uint64) {
	x.tr.counters.Wire.Each(func(_ wire.Reason, n uint64) { sum += n })
	return sum + x.tr.counters.Violations.Load()
}

func (x *impostor) close() {
	require.NoError(x.t, x.ep.Retire())
	for x.ep.unpolled() > 0 {
		x.poll()
	}
	require.NoError(x.t, x.ep.Close())
	require.NoError(x.t, x.region.Close())
	require.NoError(x.t, x.tr.Close())
	_ = x.conn.Close()
}

// TestNonsenseEndsTheEndpoint: a peer that has the key and breaks the protocol loses the
// connection; memory stays as it was, and every receive is flushed.
func TestNonsenseEndsTheEndpoint(t *testing.T) {
	ten := make([]byte, 10)
	for i := range ten {
		ten[i] = 0xee
	}
	for name, say := range map[string]func(x *impostor){
		"accept, twice":               func(x *impostor) { x.say(message{code: codeAccept, op: 4, recv: 4}, nil) },
		"acknowledges what was not":   func(x *impostor) { x.say(message{code: codeAck, ack: 1}, nil) },
		"grants more than it has":     func(x *impostor) { x.say(message{code: codeAck, credit: 5}, nil) },
		"an acknowledgement of bytes": func(x *impostor) { x.say(message{code: codeAck}, ten) },
		"answers what was not asked":  func(x *impostor) { x.say(message{code: codeReadData, total: 10}, ten) },
		"refuses what was not asked":  func(x *impostor) { x.say(message{code: codeRefuse, status: transport.StatusRemote}, nil) },
		"a request beyond its depth":  func(x *impostor) { x.say(message{code: codeSend, op: 4, total: 10}, ten) },
		"a receive that is not there": func(x *impostor) { x.say(message{code: codeSend, recv: 2, total: 10}, ten) },
		"one receive, twice": func(x *impostor) {
			x.say(message{code: codeSend, total: 20}, ten)
			x.say(message{code: codeSend, op: 1, total: 10}, ten)
		},
		"more bytes than the request":   func(x *impostor) { x.say(message{code: codeSend, total: 9}, ten) },
		"bytes behind the request":      func(x *impostor) { x.say(message{code: codeSend, at: 11, total: 20}, ten) },
		"no bytes where there are some": func(x *impostor) { x.say(message{code: codeSend, total: 10}, nil) },
		"a request that changes": func(x *impostor) {
			x.say(message{code: codeSend, total: 30}, ten)
			x.say(message{code: codeSend, at: 10, total: 29}, ten)
		},
		"no message at all": func(x *impostor) { _, _ = x.conn.Write(make([]byte, 500)) },
		"a message without fields": func(x *impostor) {
			frame, _ := x.session.Seal(nil, &wire.Head{Code: codeAck})
			_, _ = x.conn.Write(frame)
		},
		"an altered header": func(x *impostor) {
			var extra [extraBytes]byte
			frame, _ := x.session.Seal(nil, &wire.Head{Code: codeAck, Extra: extra[:]})
			frame[len(frame)-1] ^= 1
			_, _ = x.conn.Write(frame)
		},
		"the same message, twice": func(x *impostor) {
			var extra [extraBytes]byte
			frame, _ := x.session.Seal(nil, &wire.Head{Code: codeAck, Extra: extra[:]})
			_, _ = x.conn.Write(append(frame, frame...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newImpostor(t)
			say(x)
			var done []transport.Completion
			require.Eventually(t, func() bool {
				got, failed := x.poll()
				done = append(done, got...)
				return failed
			}, soon, time.Millisecond)
			got, _ := x.poll()
			for _, c := range append(done, got...) {
				require.Equal(t, transport.StatusFlushed, c.Status, "%+v", c)
			}
			require.Len(t, append(done, got...), 2)
			require.Equal(t, make([]byte, 4096-100), x.region.Bytes()[100:])
			require.EqualValues(t, 1, x.refused(), "counted, once")
			x.close()
		})
	}
}

// TestAlteredPayloadIsNeverAnnounced: the bytes may be in their place, but no side is
// told that they are good (WF3).
func TestAlteredPayloadIsNeverAnnounced(t *testing.T) {
	for _, n := range []int{1, 100, 40_000} {
		x := newImpostor(t)
		big, err := x.tr.Register(make([]byte, 40_000), transport.AccessWrite)
		require.NoError(t, err)
		m := message{code: codeWriteImm, key: big.Remote().Key, total: uint32(n)}
		var extra [extraBytes]byte
		m.encode(&extra)
		payload := make([]byte, n)
		frame, err := x.session.Seal(nil, &wire.Head{Code: m.code, Extra: extra[:]}, payload)
		require.NoError(t, err)
		payload[n/2] ^= 4
		_, err = x.conn.Write(append(frame, payload...))
		require.NoError(t, err)
		var done []transport.Completion
		require.Eventually(t, func() bool {
			got, failed := x.poll()
			done = append(done, got...)
			return failed || len(done) > 0
		}, soon, time.Millisecond)
		for _, c := range done {
			require.Equal(t, transport.StatusFlushed, c.Status)
		}
		require.EqualValues(t, 1, x.tr.counters.Wire.Refused(wire.ErrPayload))
		require.NoError(t, big.Close())
		x.close()
	}
}

// TestAnnouncedTwice: bytes that one socket is about to bring cannot come over
// another one, too. They would land after the completion.
func TestAnnouncedTwice(t *testing.T) {
	x := newImpostor(t)
	var list [numPieces][]byte
	half := message{code: codeSend, total: 20}
	_, _, v := x.ep.arrive(&half, 10, list[:0])
	require.Equal(t, place, v)
	whole := half
	_, _, v = x.ep.arrive(&whole, 20, list[:0])
	require.Equal(t, violation, v)

	_, err := x.ep.PostSend([]transport.SendRequest{
		{ID: 3, Op: transport.OpRead, Local: []transport.Piece{{Region: x.region, Bytes: 20}}, Remote: x.region.Remote()},
	})
	require.NoError(t, err)
	answer := message{code: codeReadData, total: 20}
	sent := func() bool {
		x.ep.mu.Lock()
		defer x.ep.mu.Unlock()
		return x.ep.out.next == 1
	}
	require.Eventually(t, func() bool { x.poll(); return sent() }, soon, time.Millisecond)
	_, _, v = x.ep.arrive(&answer, 20, list[:0])
	require.Equal(t, place, v)
	_, _, v = x.ep.arrive(&answer, 1, list[:0])
	require.Equal(t, violation, v)
	x.close()
}
