package link

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/wire"
)

// askable is a log that answers on the goroutine of its controls.
type askable struct {
	*log
	ask chan func()
}

func (a *askable) Tick() {
	select {
	case f := <-a.ask:
		f()
	default:
	}
}

// besieged is rank 0 of two, of which rank 1 has not come yet.
type besieged struct {
	*Controls
	t        *testing.T
	log      *askable
	counters wire.Counters
	keys     *wire.Keyring
	listener *Listener
	id       wire.PeerID
	friend   wire.PeerID
}

func besiege(t *testing.T) *besieged {
	e, err := Listen(loopback())
	require.NoError(t, err)
	b := &besieged{t: t, log: &askable{newLog(), make(chan func())}, keys: wire.GenerateKeyring(), listener: e, id: newID(), friend: newID()}
	b.Controls, err = StartControls(ControlConfig{
		Rank: 0, ID: b.id, Keys: b.keys, Counters: &b.counters, Tick: 5 * time.Millisecond,
		HandshakeTimeout: 300 * time.Millisecond,
	}, e, map[int]Participant{1: {ID: b.friend}}, b.log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// handshake is a dialler's, with the peer's terms but for the key and its name.
func (b *besieged) handshake(keys *wire.Keyring, self wire.PeerID) *wire.Handshake {
	h, err := wire.NewHandshake(wire.RoleClient, wire.Config{
		Keys: keys, Self: self, Peer: b.id, Ordered: true, MaxPayloadBytes: MaxControlBytes,
		Codes: wire.Codes(codeMessage, codeShutdown, codeResume, codeAck),
	})
	require.NoError(b.t, err)
	return h
}

func (b *besieged) hello() []byte { return b.handshake(b.keys, b.friend).Start() }

// snapshot is what unauthenticated clients must not be able to change: what the handler was
// told, what there is of the peer and of unauthenticated clients, and what has been counted.
func (b *besieged) snapshot() string {
	snapshot := make(chan string, 1)
	b.log.ask <- func() {
		b.log.mu.Lock()
		defer b.log.mu.Unlock()
		p := b.peers[1]
		snapshot <- fmt.Sprintln(b.log.up, b.log.heard, b.log.ended, b.Ranks(), b.Stats(), b.counters.Frames(),
			len(b.pending.All()), len(b.tokens), b.resting, p.token, p.session == nil, p.hands == nil, p.met, p.over, p.shutdown)
	}
	return <-snapshot
}

// refused is all that was refused, by reason.
func (b *besieged) refused() map[wire.Reason]uint64 {
	all := map[wire.Reason]uint64{}
	b.counters.Each(func(r wire.Reason, n uint64) { all[r] = n })
	return all
}

// intrude says bytes, and returns once the listener has closed the connection.
func (b *besieged) intrude(name string, said []byte, hang bool) {
	conn, err := net.Dial("tcp", b.listener.Addr().String())
	require.NoError(b.t, err)
	defer conn.Close()
	_, _ = conn.Write(said) // may be refused half-way
	if !hang {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	require.NoError(b.t, conn.SetReadDeadline(time.Now().Add(testTimeout)))
	_, err = io.Copy(io.Discard, conn)
	if expiry, ok := err.(net.Error); ok {
		require.False(b.t, expiry.Timeout(), "%s: the connection stays open", name)
	}
}

// TestUnauthenticatedConnections: what comes from a client that does not know the key, or
// was recorded, ends with the connection, is counted by its reason alone, and changes
// nothing.
func TestUnauthenticatedConnections(t *testing.T) {
	b := besiege(t)
	recorded := b.hello()
	flip := func(i int) []byte {
		h := bytes.Clone(b.hello())
		h[i] ^= 1
		return h
	}
	before := b.snapshot()
	for _, s := range []struct {
		name   string
		bytes  []byte
		hang   bool        // keep the connection open and say no more
		reason wire.Reason // 0: nothing that could be refused has come
	}{
		{"nothing, for too long", nil, true, 0},
		{"half a hello, for too long", recorded[:60], true, 0},
		{"half a hello", recorded[:60], false, 0},
		{"text", []byte("GET / HTTP/1.1\r\nHost: experts\r\n\r\n"), false, wire.ErrLength},
		{"a huge length", []byte{0xff, 0xff, 0xff, 0x7f}, false, wire.ErrLength},
		{"zeros", make([]byte, 4096), false, wire.ErrLength},
		{"an altered version", flip(4), false, wire.ErrMAC},
		{"an altered key id", flip(8), false, wire.ErrKeyID},
		{"an altered tag", flip(len(recorded) - 1), false, wire.ErrMAC},
		{"another key", b.handshake(wire.GenerateKeyring(), b.friend).Start(), false, wire.ErrMAC},
		{"nobody's name", b.handshake(b.keys, newID()).Start(), false, wire.ErrDeclined},
		{"a hello that is not confirmed", recorded, true, 0},
		{"a recorded hello", recorded, true, wire.ErrReplay},
	} {
		want := b.refused()
		if s.reason != 0 {
			want[s.reason]++
		}
		b.intrude(s.name, s.bytes, s.hang)
		require.Equal(t, want, b.refused(), s.name) // counted before it is closed
		require.Equal(t, before, b.snapshot(), s.name)
	}
	b.join()
}

// join connects the genuine peer by hand, and returns what it has said.
func (b *besieged) join() (hello, confirm []byte) {
	conn, err := net.Dial("tcp", b.listener.Addr().String())
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(b.t, conn.SetDeadline(time.Now().Add(testTimeout)))
	h := b.handshake(b.keys, b.friend)
	hello = bytes.Clone(h.Start())
	_, err = conn.Write(hello)
	require.NoError(b.t, err)
	for !h.Done() {
		in := make([]byte, h.Need())
		_, err = io.ReadFull(conn, in)
		require.NoError(b.t, err)
		_, out, err := h.Step(in)
		require.NoError(b.t, err)
		confirm = append(confirm, out...)
		_, err = conn.Write(out)
		require.NoError(b.t, err)
	}
	b.log.until(b.t, "the friend is up", func() bool { return b.log.up == 1<<1 })
	return hello, confirm
}

// TestRecordedHandshake: what a genuine peer has said does not make its
// connection anew, nor does a part of it behind a fresh hello.
func TestRecordedHandshake(t *testing.T) {
	b := besiege(t)
	hello, confirm := b.join()
	before := b.snapshot()
	for _, s := range []struct {
		name   string
		bytes  []byte
		reason wire.Reason
	}{
		{"the whole handshake again", append(bytes.Clone(hello), confirm...), wire.ErrReplay},
		{"an old confirm behind a fresh hello", append(bytes.Clone(b.hello()), confirm...), wire.ErrMAC},
	} {
		want := b.refused()
		want[s.reason]++
		b.intrude(s.name, s.bytes, true)
		require.Equal(t, want, b.refused(), s.name)
		require.Equal(t, before, b.snapshot(), s.name)
	}
}
