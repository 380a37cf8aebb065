package fabric

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// manyPeers is two fabrics that know each other by many names: peer n of the one
// is peer n of the other.
func manyPeers(t *testing.T, adjust func(i int, c *Config)) *world {
	w := &world{net: fake.New(fake.Config{Seed: testenv.Seed(t)})}
	for i := range 2 {
		dev := w.net.Transport()
		cfg := Config{Transport: dev, ConnectFor: 5 * time.Second}
		adjust(i, &cfg)
		f, err := Open(cfg)
		require.NoError(t, err)
		w.devs, w.fabs = append(w.devs, dev), append(w.fabs, f)
	}
	for i, f := range w.fabs {
		w.ended.Add(1)
		go func() {
			defer w.ended.Done()
			buf := make([]byte, MaxHandshakeBytes)
			for {
				name, n, ok, err := f.Next(buf, inTime())
				if err != nil {
					return
				}
				if ok {
					_ = w.fabs[1-i].Deliver(name, append([]byte(nil), buf[:n]...))
				}
			}
		}()
	}
	return w
}

// TestPeersComeAndGo: many more peers than are remembered get what was sent to them; a
// peer that waits for something is not forgotten meanwhile.
func TestPeersComeAndGo(t *testing.T) { synctest.Test(t, peersComeAndGo) }

func peersComeAndGo(t *testing.T) {
	w := manyPeers(t, func(i int, c *Config) { c.NumPeers, c.NumConnections, c.NumTransfers = 6+20*i, 4, 64 })
	defer w.close(t)
	a, b := w.fabs[0], w.fabs[1]
	_, _, at := memory(t, b, 1)
	require.NoError(t, a.Connect(1_000_000, inTime()))
	stays := post(t, a, Request{Kind: ReceiveImm, Peer: 1_000_000})
	names := 3000
	if testing.Short() {
		names = 600
	}
	for i := range names {
		name := endpoint.Peer(i - i%3/2) // some again, at once
		ref := retryPost(t, a, Request{Kind: WriteImm, Peer: name, Remote: at, Imm: uint32(i)})
		if res, err := a.Wait(ref, inTime()); res.Err != nil || err != nil {
			require.ErrorIs(t, res.Err, ErrEnded, "it has made room") // may happen to any
			require.NoError(t, a.Drop(ref))
			continue
		}
		got := post(t, b, Request{Kind: ReceiveImm, Peer: name})
		require.EqualValues(t, i, done(t, b, got).Imm)
		require.NoError(t, a.Drop(ref))
		require.LessOrEqual(t, a.Stats().NumPeers, 6)
		require.LessOrEqual(t, b.Stats().NumPeers, 26)
	}
	res, err := a.Look(stays)
	require.NoError(t, err)
	require.True(t, res.State == op.Pending || errors.Is(res.Err, ErrEnded), "%+v", res)
	require.LessOrEqual(t, len(a.conns), 6)
	require.LessOrEqual(t, len(b.conns), 6)
}

// retryPost posts once there is a connection, and room for it.
func retryPost(t *testing.T, f *Fabric, r Request) op.Ref {
	t.Helper()
	for end := inTime(); ; time.Sleep(50 * time.Microsecond) {
		ref, err := f.Post(&r)
		if err == nil {
			return ref
		}
		require.NoError(t, acceptable(err))
		require.True(t, time.Now().Before(end), "%v", err)
	}
}

// TestBusyPeersStay: at the bound, a peer with anything under way stays.
func TestBusyPeersStay(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 4, fake.Config{}, func(c *Config) { c.NumPeers = 3; c.RecvDepth, c.NumUnmatched = 2, 4 })
	defer w.close(t)
	f := w.fabs[0]
	_, _, at := memory(t, f, 1)
	require.NoError(t, w.fabs[1].Connect(0, inTime()))
	done(t, w.fabs[1], post(t, w.fabs[1], Request{Kind: WriteImm, Peer: 0, Remote: at, Imm: 11}))
	require.Eventually(t, func() bool { return f.unmatchedOf(1) == 1 }, soon, time.Millisecond)
	w.fabs[1].Disconnect(0) // its number is still to be had here
	require.NoError(t, f.Connect(2, inTime()))
	for name := endpoint.Peer(3); name < 40; name++ {
		_, err := f.Post(&Request{Kind: Write, Peer: name, Remote: at})
		require.ErrorIs(t, acceptable(err), nil, "peer %d", name)
		require.LessOrEqual(t, f.Stats().NumPeers, 3)
	}
	require.EqualValues(t, 11, done(t, f, post(t, f, Request{Kind: ReceiveImm, Peer: 1})).Imm)
}

// unmatchedOf is how many immediates of a peer no receive has taken.
func (f *Fabric) unmatchedOf(id endpoint.Peer) int {
	p, err := f.peerOf(id)
	if err != nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unmatched
}

// TestConnectionsAreUnlisted: a connection that ends when its window is empty, because
// nothing is received, is forgotten like others.
func TestConnectionsAreUnlisted(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{NoReceiveTimeout: -1}, func(c *Config) { c.RecvDepth, c.NumUnmatched = 2, 2 })
	defer w.close(t)
	a, b := w.fabs[0], w.fabs[1]
	_, _, at := memory(t, b, 1)
	w.connect(t)
	for range 4 { // as many as b keeps
		done(t, a, retryPost(t, a, Request{Kind: WriteImm, Peer: 1, Remote: at}))
	}
	for range 20 {
		require.NoError(t, a.Connect(1, inTime()))
		require.NoError(t, b.Connect(0, inTime()))
		b.Disconnect(0)
	}
	require.Eventually(t, func() bool { return b.numConns()+a.numConns() == 0 }, soon, time.Millisecond,
		"%d and %d", a.numConns(), b.numConns())
	for range 4 {
		done(t, b, post(t, b, Request{Kind: ReceiveImm, Peer: 0}))
	}
}

// TestRetiredWhileToppedUp: so is one that ends while its last receives are
// being posted.
func TestRetiredWhileToppedUp(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, nil)
	defer w.close(t)
	w.connect(t)
	f := w.fabs[0]
	p, err := f.peerOf(1)
	require.NoError(t, err)
	late := &conn{ref: p.live.Load().ref, peer: p, empty: make([]transport.RecvRequest, f.cfg.RecvDepth)}
	f.list(late)
	f.Disconnect(1) // topUp has seen a live one
	require.ErrorIs(t, f.topUp(late), transport.ErrState)
	f.mu.RLock()
	defer f.mu.RUnlock()
	require.NotContains(t, f.conns, late.serial)
}

func (f *Fabric) numConns() int {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return len(f.conns)
}

// TestNewestConnection: the making of a connection that was retired meanwhile
// does not take the place of the one that came after it.
func TestNewestConnection(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, nil)
	defer w.close(t)
	w.connect(t)
	f := w.fabs[0]
	p, err := f.peerOf(1)
	require.NoError(t, err)
	late := &conn{ref: p.live.Load().ref, peer: p}
	f.Disconnect(1)
	require.NoError(t, f.Connect(1, inTime()))
	newest := p.making
	require.ErrorIs(t, f.adopt(late), transport.ErrState)
	require.Same(t, newest, p.making)
}

// TestRegisterDuringClose: Close waits for memory that is being registered, and
// releases it.
func TestRegisterDuringClose(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 1, fake.Config{}, nil)
	f, gate := w.fabs[0], fake.NewGate()
	w.net.Inject(fake.Fault{Point: fake.AtRegister, Gate: gate})
	ended := make(chan error, 1)
	go func() { _, err := f.Register(make([]byte, 8), 0); ended <- err }()
	require.Eventually(t, func() bool { return gate.Waiting() == 1 }, soon, time.Millisecond)
	require.ErrorIs(t, f.Close(time.Now().Add(5*time.Millisecond)), transport.ErrBusy)
	gate.Open()
	require.NoError(t, <-ended)
	w.close(t)
}

// TestRefusedMessageHasNoNumber: what was refused to the sender is not missing
// at the receiver.
func TestRefusedMessageHasNoNumber(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.Mode = Messages })
	defer w.close(t)
	w.connect(t)
	_, id, _ := memory(t, w.fabs[1], 16)
	for i := range uint32(3) {
		w.net.Inject(fake.Fault{Point: fake.AtPostSend, Transport: w.devs[0], Times: 1, Err: errStorm})
		_, err := w.fabs[0].Post(&Request{Kind: Send, Peer: 1})
		require.ErrorIs(t, err, errStorm)
		recv := post(t, w.fabs[1], Request{Kind: Recv, Peer: 0, Region: id, Bytes: 8})
		done(t, w.fabs[0], post(t, w.fabs[0], Request{Kind: Send, Peer: 1}))
		require.Equal(t, i+1, done(t, w.fabs[1], recv).Imm)
	}
}

// TestRefusedMessageReadsNoNumber: once the parts that were not posted have
// ended, Close unmaps the numbers.
func TestRefusedMessageReadsNoNumber(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.Mode = Messages })
	defer w.close(t)
	w.connect(t)
	f := w.fabs[0]
	p, err := f.peerOf(1)
	require.NoError(t, err)
	c := p.live.Load()
	ref, err := f.begin(c, Send, 1)
	require.NoError(t, err)
	work := f.fill(ref, Send, c, 1)
	unmapped := header{}
	f.header, unmapped = unmapped, f.header
	_, err = f.postFailed(work, ref, 0, 1, transport.ErrState)
	f.header = unmapped
	require.ErrorIs(t, err, ErrEnded)
	require.Zero(t, f.outstanding.Load())
}

// TestForgottenWhileItConnects: a peer that waits at num_connections may be forgotten
// meanwhile, and is known again when its turn comes.
func TestForgottenWhileItConnects(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 3, fake.Config{}, func(c *Config) { c.NumPeers, c.NumConnections = 2, 1 })
	defer w.close(t)
	f, gate := w.fabs[0], fake.NewGate()
	require.NoError(t, f.Connect(1, inTime()))
	slow := w.net.Inject(fake.Fault{Point: fake.AtDestroy, Transport: w.devs[0], Times: 1, Gate: gate})
	defer slow.Remove()
	ended := make(chan error, 1)
	go func() { ended <- f.Connect(2, inTime()) }()
	<-gate.Arrived() // the first one makes room
	require.Eventually(t, func() bool {
		for name := endpoint.Peer(3); name < 6; name++ {
			_, _ = f.peerOf(name) // refused while handshakes wait
		}
		f.mu.RLock()
		defer f.mu.RUnlock()
		return f.peers.byID[2] == nil
	}, soon, time.Millisecond)
	gate.Open()
	require.NoError(t, <-ended)
}

// TestEviction: the configured policy chooses the connection that makes room.
func TestEviction(t *testing.T) {
	for policy, evicted := range map[endpoint.Policy]endpoint.Peer{endpoint.SIEVE: 3, endpoint.FIFO: 2} {
		t.Run(policy.String(), func(t *testing.T) {
			w := newWorld(t, testenv.Seed(t), 6, fake.Config{}, func(c *Config) { c.NumConnections, c.Eviction = 3, policy })
			defer w.close(t)
			for _, to := range []endpoint.Peer{1, 2, 3, 4, 2, 5} { // 4 makes 1 go, and 2 is used once more
				require.NoError(t, w.fabs[0].Connect(to, inTime()))
			}
			for to := endpoint.Peer(1); to < 6; to++ {
				require.Equal(t, to != 1 && to != evicted, w.fabs[0].store.Has(to), "peer %d", to)
			}
		})
	}
	_, err := Open(Config{Transport: fake.New(fake.Config{}).Transport(), Eviction: endpoint.FIFO + 1})
	require.ErrorContains(t, err, "allowed SIEVE and FIFO")
}
