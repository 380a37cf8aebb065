package fabric

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/transport/fake"
	"github.com/moewire/moewire/core/wire"
)

// credulous is a carrier that connects to whatever address it is told.
type credulous struct{ *fake.Transport }

func (credulous) ConnectsUnproven() {}

// TestSignedHandshakes: fabrics with signed handshakes find each other, and move bytes,
// though handshakes are lost, doubled and late.
func TestSignedHandshakes(t *testing.T) {
	ring := wire.GenerateKeyring()
	w := newWorld(t, 3, 3, fake.Config{}, func(c *Config) { c.Keys = ring })
	w.mu.Lock()
	w.lossy = true
	w.mu.Unlock()
	w.connect(t)
	a, idA, _ := memory(t, w.fabs[0], 1000)
	b, _, atB := memory(t, w.fabs[1], 1000)
	fill(a, 5)
	done(t, w.fabs[0], post(t, w.fabs[0], Request{Kind: Write, Peer: 1, Region: idA, Bytes: 1000, Remote: atB}))
	require.Equal(t, a, b)
	w.close(t)
}

// handshakeOf is the first handshake of a fabric, which wants to be connected to peer 1.
func handshakeOf(t *testing.T, f *Fabric) []byte {
	t.Helper()
	require.ErrorIs(t, f.Connect(1, time.Now()), endpoint.ErrConnecting)
	buf := make([]byte, MaxHandshakeBytes)
	_, n, ok, err := f.Next(buf, inTime())
	require.NoError(t, err)
	require.True(t, ok)
	return buf[:n]
}

// single is a fabric by itself.
func single(t *testing.T, network *fake.Network, ring *wire.Keyring, counters *wire.Counters) *Fabric {
	t.Helper()
	f, err := Open(Config{Transport: network.Transport(), Keys: ring, Counters: counters})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close(inTime())) })
	return f
}

// TestForgedHandshakes: a handshake that was not signed with a key of the ring, was
// changed on its way, or is turned back changes nothing, not even which peers are known.
func TestForgedHandshakes(t *testing.T) {
	network, ring := fake.New(fake.Config{}), wire.GenerateKeyring()
	var counters wire.Counters
	f := single(t, network, ring, &counters)
	genuine := handshakeOf(t, single(t, network, ring, nil))
	require.False(t, bytes.Contains(genuine[:8], []byte("MWF")), "it is in a frame")
	foreign := handshakeOf(t, single(t, network, wire.GenerateKeyring(), nil))
	unsigned := handshakeOf(t, single(t, network, nil, nil))
	own := handshakeOf(t, f)
	before := f.Stats()
	refused := [][]byte{nil, foreign, unsigned, own, genuine[:len(genuine)-1]}
	for bit := range 8 * len(genuine) {
		changed := bytes.Clone(genuine)
		changed[bit/8] ^= 1 << (bit % 8)
		refused = append(refused, changed)
	}
	for _, handshake := range refused {
		require.ErrorIs(t, f.Deliver(2, handshake), endpoint.ErrHandshake)
	}
	require.ErrorContains(t, f.Deliver(2, own), "this fabric's own")
	after := f.Stats()
	require.Equal(t, before.NumPeers, after.NumPeers)
	require.Equal(t, before.Connections.Live, after.Connections.Live)
	require.Positive(t, counters.Refused(wire.ErrMAC))
	require.NoError(t, f.Deliver(2, genuine))
	require.Equal(t, before.NumPeers+1, f.Stats().NumPeers)
	// A fabric that signs nothing takes no signed handshake for one of its own kind.
	require.ErrorIs(t, single(t, network, nil, nil).Deliver(2, genuine), endpoint.ErrHandshake)
}

// recorder is a courier that keeps the handshakes of one fabric to another.
type recorder struct {
	mu         sync.Mutex
	handshakes [][]byte
}

func (r *recorder) keep(handshake []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handshakes = append(r.handshakes, bytes.Clone(handshake))
}

func (r *recorder) all() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.handshakes)
}

// recorded is three fabrics that sign, of which 1 is connected to 2 and, later, to
// 0; and what it said to 0.
func recorded(t *testing.T) (*world, *recorder) {
	ring, r := wire.GenerateKeyring(), &recorder{}
	w := newWorld(t, 3, 3, fake.Config{}, func(c *Config) { c.Keys = ring })
	w.mu.Lock()
	w.observe = func(from, to int, handshake []byte) {
		if from == 1 && to == 0 {
			r.keep(handshake)
		}
	}
	w.mu.Unlock()
	for _, from := range []int{2, 0} {
		require.NoError(t, w.fabs[from].Connect(1, inTime()))
	}
	require.GreaterOrEqual(t, len(r.all()), 2, "an introduction and a handshake")
	return w, r
}

// TestHandshakesForOthers: a genuine handshake that is brought to another fabric than the
// one that it is for ends no connection there, however new it is.
func TestHandshakesForOthers(t *testing.T) {
	w, r := recorded(t)
	f := w.fabs[2]
	p, err := f.peerOf(1)
	require.NoError(t, err)
	live, before := p.live.Load(), f.Stats().Connections
	require.NotNil(t, live)
	for _, handshake := range r.all() {
		require.NoError(t, f.Deliver(1, handshake))
	}
	_, idA, _ := memory(t, f, 100)
	_, _, atB := memory(t, w.fabs[1], 100)
	done(t, f, post(t, f, Request{Kind: Write, Peer: 1, Region: idA, Bytes: 100, Remote: atB}))
	require.Same(t, live, p.live.Load())
	require.Equal(t, before.Made, f.Stats().Connections.Made)
	require.Zero(t, f.Stats().Connections.Retiring)
	w.close(t)
}

// TestHandshakesForAFormerLife: a fabric that takes another one's place begins nothing
// for what that one was told.
func TestHandshakesForAFormerLife(t *testing.T) {
	w, r := recorded(t)
	fresh := single(t, w.net, w.fabs[0].cfg.Keys, nil)
	for _, handshake := range r.all() {
		require.NoError(t, fresh.Deliver(1, handshake))
	}
	time.Sleep(3 * tickEvery)
	require.Zero(t, fresh.Stats().Connections.Made)
	w.close(t)
}

// TestARestartedPeerIsMet: a fabric that has taken the place of a peer is told what its
// predecessor was, though nothing says that it is another one.
func TestARestartedPeerIsMet(t *testing.T) {
	ring := wire.GenerateKeyring()
	w := newWorld(t, 3, 2, fake.Config{}, func(c *Config) { c.Keys = ring })
	w.connect(t)
	require.NoError(t, w.fabs[1].Close(inTime()))
	dev := w.net.Transport()
	next, err := Open(Config{Transport: dev, Keys: ring, ConnectFor: 5 * time.Second, DrainFor: 20 * time.Second})
	require.NoError(t, err)
	w.mu.Lock()
	w.devs[1], w.fabs[1] = dev, next
	w.mu.Unlock()
	w.ended.Add(1)
	go w.carry(1)
	_, idA, _ := memory(t, w.fabs[0], 100)
	_, _, atB := memory(t, next, 100)
	require.Eventually(t, func() bool {
		ref, err := w.fabs[0].Post(&Request{Kind: Write, Peer: 1, Region: idA, Bytes: 100, Remote: atB})
		if err != nil {
			return false
		}
		res, err := w.fabs[0].WaitReleased(ref, inTime())
		return err == nil && w.fabs[0].Drop(ref) == nil && res.Err == nil
	}, soon, time.Millisecond)
	w.close(t)
}

// TestCredulousCarriersNeedKeys: without keys no fabric could tell which peer is there.
func TestCredulousCarriersNeedKeys(t *testing.T) {
	dev := fake.New(fake.Config{}).Transport()
	_, err := Open(Config{Transport: credulous{dev}})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "Keys must be given: fake connects to whatever address a handshake says")
	f, err := Open(Config{Transport: credulous{dev}, Keys: wire.GenerateKeyring()})
	require.NoError(t, err)
	require.NoError(t, f.Close(inTime()))
}
