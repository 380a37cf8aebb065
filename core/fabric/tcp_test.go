package fabric

import (
	"bytes"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

// TestOverTCP does the same over sockets, in both modes (TP2), and leaves
// nothing.
func TestOverTCP(t *testing.T) {
	overTCP(t, Immediates) // the runtime's own descriptors
	goroutinesBefore, before := runtime.NumGoroutine(), descriptors(t)
	for _, mode := range []Mode{Immediates, Messages} {
		overTCP(t, mode)
	}
	goroutines(t, goroutinesBefore)
	require.Equal(t, before, descriptors(t))
}

func overTCP(t *testing.T, mode Mode) { tcpWorld(t, mode).overCarrier(t, mode, memory) }

// tcpWorld is two fabrics over sockets.
func tcpWorld(t *testing.T, mode Mode) *world {
	w := &world{}
	ring := wire.GenerateKeyring()
	for range 2 {
		tr, err := tcp.Open(tcp.Config{Keyring: ring, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}})
		require.NoError(t, err)
		f, err := Open(Config{Transport: tr, Mode: mode, SliceBytes: 100_000})
		require.NoError(t, err)
		w.fabs = append(w.fabs, f)
	}
	return w
}

// closeFabrics closes fabrics over a carrier that counts nothing.
func (w *world) closeFabrics(t *testing.T) {
	for _, f := range w.fabs {
		require.NoError(t, f.Close(time.Now().Add(soon)))
	}
	w.ended.Wait()
	w.delayed.Wait()
}

// overCarrier moves bytes in every way between two fabrics, and closes them.
func (w *world) overCarrier(t *testing.T, mode Mode, memory func(testing.TB, *Fabric, int) ([]byte, RegionID, transport.RemoteRegion)) {
	w.carryAll()
	w.connect(t)
	a, idA, _ := memory(t, w.fabs[0], 1_000_000)
	b, idB, atB := memory(t, w.fabs[1], 1_000_000)
	fill(a, 3)
	// Not where a message comes in: the two sides share no lock, which the race
	// detector would have to see.
	r := Request{Kind: WriteImm, Peer: 1, Region: idA, Bytes: 900_000, Remote: atB, RemoteOff: 100_000, Imm: 77}
	if mode == Messages {
		got := post(t, w.fabs[1], Request{Kind: Recv, Peer: 0, Region: idB, Off: 10, Bytes: 90_000})
		done(t, w.fabs[0], post(t, w.fabs[0], Request{Kind: Send, Peer: 1, Region: idA, Bytes: 80_000}))
		res := done(t, w.fabs[1], got)
		require.EqualValues(t, 80_000, res.NumBytes)
		require.EqualValues(t, 1, res.Imm)
		require.Equal(t, a[:80_000], b[10:80_010])
		r.Kind = Write
	}
	sent := post(t, w.fabs[0], r)
	if mode == Immediates {
		require.EqualValues(t, 77, done(t, w.fabs[1], post(t, w.fabs[1], Request{Kind: ReceiveImm, Peer: 0})).Imm)
		require.Equal(t, a[:900_000], b[100_000:])
	}
	require.EqualValues(t, 900_000, done(t, w.fabs[0], sent).NumBytes)
	want := bytes.Clone(a[:900_000])
	clear(a)
	done(t, w.fabs[0], post(t, w.fabs[0], Request{Kind: Read, Peer: 1, Region: idA, Bytes: 900_000, Remote: atB, RemoteOff: 100_000}))
	require.Equal(t, want, a[:900_000])

	waits := post(t, w.fabs[1], receiveOf(mode, idB))
	w.fabs[0].Disconnect(1)
	failed(t, w.fabs[1], waits, ErrEnded)
	w.closeFabrics(t)
}

func receiveOf(mode Mode, id RegionID) Request {
	if mode == Messages {
		return Request{Kind: Recv, Peer: 0, Region: id, Bytes: 8}
	}
	return Request{Kind: ReceiveImm, Peer: 0}
}
