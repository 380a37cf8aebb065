package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/device/cuda/fifo/fifotest"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

const testTimeout = 30 * time.Second

// host is one rank of two: a link, a proxy, and a device of goroutines that
// sees the link's rings.
type host struct {
	rank, peer int
	poll       *link.Poller
	link       *link.Link
	set        *link.Set
	rings      [][]byte // receive, send
	lost       atomic.Bool
	proxy      atomic.Pointer[Proxy]
	dev        *fifotest.Device
	mail       []uint64
	generation uint64
}

func (h *host) memory(n int64) (domain.Segment, error) {
	_, slab, err := inproc.New(1, 8)[0].AddSlab(n)
	if err == nil {
		h.rings = append(h.rings, slab.Bytes(0, n))
	}
	return slab, err
}

func newHost(t testing.TB, carrier transport.Transport, rank int, cfg link.Config, lease int64) *host {
	h := &host{rank: rank, peer: 1 - rank}
	h.poll = link.NewPoller(carrier, func() {
		if p := h.proxy.Load(); p != nil {
			p.Ring()
		}
	})
	var err error
	h.link, err = link.NewLink(h.poll, h.peer, rand.Uint32(), cfg, h.memory)
	require.NoError(t, err)
	h.set = link.NewSet(cfg, h.memory, func(int) error {
		if h.lost.Load() {
			return fmt.Errorf("rank %d: %w", h.peer, domain.ErrExited)
		}
		return nil
	}, 0)
	words := make([]uint64, fifo.Words(8))
	q, err := fifo.New(words, 8)
	require.NoError(t, err)
	h.mail = make([]uint64, MailWords(2))
	p, err := New(Config{NumRanks: 2, Queue: q, Mail: h.mail, LeaseBytes: lease})
	require.NoError(t, err)
	h.proxy.Store(p)
	h.dev = &fifotest.Device{Words: words, Num: 8}
	return h
}

// hosts connects two, and starts their proxies.
func hosts(t testing.TB, carriers [2]transport.Transport, cfg link.Config, lease int64) (all [2]*host) {
	t.Helper()
	for r := range all {
		all[r] = newHost(t, carriers[r], r, cfg, lease)
	}
	a, b := all[0], all[1]
	failed, offers := make(chan error, 1), [2][]byte{a.link.Offer(), b.link.Offer()}
	go func() { failed <- a.link.Connect(offers[1], time.Now().Add(testTimeout)) }()
	require.NoError(t, b.link.Connect(offers[0], time.Now().Add(testTimeout)))
	require.NoError(t, <-failed)
	a.set.Put([]*link.Link{nil, a.link})
	b.set.Put([]*link.Link{b.link})
	t.Cleanup(func() {
		for _, h := range all {
			h.proxy.Load().Stop()
			require.NoError(t, h.link.Close(time.Now().Add(testTimeout)))
			require.NoError(t, h.poll.Close())
		}
	})
	for _, h := range all {
		h.start(t)
	}
	return all
}

func (h *host) start(t testing.TB) {
	next, err := h.proxy.Load().Start(h.set)
	require.NoError(t, err)
	h.generation = next
	h.dev.Next.Store(next)
}

var (
	// errOver: the proxy has stopped, or what was waited for will not come.
	errOver = errors.New("over")
	errLate = errors.New("nothing has happened for too long")
)

// await is a wait of the device for a word of the mail.
func (h *host) await(word int, want uint64) error {
	for end := time.Now().Add(testTimeout); atomic.LoadUint64(&h.mail[mailWords*h.peer+word]) != want; runtime.Gosched() {
		if atomic.LoadUint64(&h.dev.Words[1]) != 0 || h.lost.Load() {
			return errOver
		}
		if time.Now().After(end) {
			return errLate
		}
	}
	return nil
}

func (h *host) push(d fifo.Descriptor) error {
	for end := time.Now().Add(testTimeout); time.Now().Before(end); runtime.Gosched() {
		switch h.dev.Try(d) {
		case fifotest.Pushed:
			return nil
		case fifotest.Ended:
			return errOver
		}
	}
	return errLate
}

// send is what a kernel does to send its n-th message since the proxy was
// started, from 1. The message says that it is of another number.
func (h *host) send(n, number uint64, rng *rand.Rand) error {
	if err := h.await(mailLease, h.generation|n); err != nil {
		return err
	}
	m := h.mail[mailWords*h.peer:]
	at, size := atomic.LoadUint64(&m[mailLeaseAt]), 1+rng.Uint64N(atomic.LoadUint64(&m[mailLeaseBytes]))
	fill(h.rings[1][at:at+size], number)
	return h.push(fifo.Descriptor{What: protocol.RemoteSend | uint64(h.peer)<<rankShift, Bytes: size, Number: h.generation | n})
}

// receive takes the n-th message since the proxy was started, and looks at all
// of it: it is the one that the peer has sent as its number.
// It may be called on any goroutine.
func (h *host) receive(n, number uint64, rng *rand.Rand) error {
	if err := h.await(mailCame, h.generation|n); err != nil {
		return err
	}
	m := h.mail[mailWords*h.peer:]
	at, size := atomic.LoadUint64(&m[mailCameAt]), atomic.LoadUint64(&m[mailCameBytes])
	want := make([]byte, 1+rng.Uint64N(uint64(leaseBytes)))
	fill(want, number)
	if got := h.rings[0][at : at+size]; !bytes.Equal(want, got) {
		return fmt.Errorf("message %d has %d bytes %x, want %d bytes %x", number, len(got), got, len(want), want)
	}
	return h.push(fifo.Descriptor{What: protocol.RemoteRelease | uint64(h.peer)<<rankShift, Number: h.generation | n})
}

func fill(b []byte, n uint64) {
	for i := range b {
		b[i] = byte(n*31 + uint64(i)*7)
	}
}

const leaseBytes = 1000

// exchange sends so many messages both ways at once.
func exchange(t *testing.T, all [2]*host, seed, num uint64) {
	var wait sync.WaitGroup
	for r, h := range all {
		wait.Go(func() {
			for n, rng := uint64(1), rand.New(rand.NewPCG(seed, uint64(r))); n <= num; n++ {
				if err := h.send(n, n, rng); err != nil {
					t.Errorf("sending message %d of rank %d: %v, %v", n, r, err, h.proxy.Load().Err())
					return
				}
			}
		})
		wait.Go(func() {
			for n, rng := uint64(1), rand.New(rand.NewPCG(seed, uint64(1-r))); n <= num; n++ {
				if err := h.receive(n, n, rng); err != nil {
					t.Errorf("message %d to rank %d: %v, %v", n, r, err, h.proxy.Load().Err())
					return
				}
			}
		})
	}
	wait.Wait()
	for _, h := range all {
		h.proxy.Load().Stop() // does what is in the queue
		require.Equal(t, Stats{Sent: num, Released: num}, h.proxy.Load().Stats())
		require.NoError(t, h.proxy.Load().Err())
	}
}

func fakes(net *fake.Network) [2]transport.Transport {
	return [2]transport.Transport{net.Transport(), net.Transport()}
}

// TestMessages: what one device sends another one gets, once each, whole and in
// order, both ways at once, whatever carries it.
func TestMessages(t *testing.T) {
	seed := testenv.Seed(t)
	cfg := link.Config{RingBytes: 1 << 13, NumMessages: 7}
	t.Run("fake", func(t *testing.T) { // keeps no order
		net := fake.New(fake.Config{Seed: seed})
		net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.3, MaxDelay: 200 * time.Microsecond})
		net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.3, MaxDelay: 200 * time.Microsecond})
		exchange(t, hosts(t, fakes(net), cfg, leaseBytes), seed, 150)
	})
	t.Run("tcp", func(t *testing.T) {
		var carriers [2]transport.Transport
		keys := wire.GenerateKeyring()
		for i := range carriers {
			var err error
			carriers[i], err = tcp.Open(tcp.Config{
				Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}, Keyring: keys,
			})
			require.NoError(t, err)
		}
		exchange(t, hosts(t, carriers, cfg, leaseBytes), seed, 150)
	})
}

// forwarder carries what one side of a link says to the other one, until the test
// ends: the link may break at that moment.
func forwarder(t testing.TB, to *link.Link) func([]byte) bool {
	box, over, ended := make(chan []byte, 1000), make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		for {
			select {
			case b := <-box:
				to.Deliver(b)
			case <-over:
				return
			}
		}
	}()
	t.Cleanup(func() { close(over); <-ended })
	return func(b []byte) bool {
		select {
		case box <- append([]byte(nil), b...):
			return true
		default:
			return false
		}
	}
}

var errFaulty = errors.New("injected")

// TestBreaks: requests fail, completions fail, are late and out of order, and
// connections break and are reconnected: the devices notice nothing.
func TestBreaks(t *testing.T) {
	seed := testenv.Seed(t)
	net := fake.New(fake.Config{Seed: seed, NoReceiveTimeout: time.Nanosecond, RetryTimeout: 5 * time.Millisecond})
	all := hosts(t, fakes(net), link.Config{RingBytes: 1 << 13, NumMessages: 5}, leaseBytes)
	t.Cleanup(func() {
		for _, h := range all {
			h.link.StopReconnecting(transport.ErrClosed)
		}
	})
	say := [2]func([]byte) bool{forwarder(t, all[1].link), forwarder(t, all[0].link)}
	for r, h := range all {
		h.link.Reconnect(link.Reconnecting{Within: time.Hour, Tries: 1 << 20, Send: say[r]})
	}
	for _, f := range []fake.Fault{
		{Point: fake.AtPostSend, Chance: 0.01, Err: errFaulty}, {Point: fake.AtWire, Chance: 0.01, Status: transport.StatusUnreachable},
		{Point: fake.AtComplete, Chance: 0.01, Status: transport.StatusOther},
		{Point: fake.AtWire, Chance: 0.3, MaxDelay: 200 * time.Microsecond},
		{Point: fake.AtComplete, Chance: 0.3, MaxDelay: 200 * time.Microsecond},
	} {
		t.Cleanup(net.Inject(f).Remove)
	}
	exchange(t, all, seed, 100)
	t.Logf("reconnected %d times", all[0].link.Stats().Reconnects)
}

// TestPeerLost: the link of a rank that is lost carries nothing; a wait for room is ended
// by the group's word, and the proxy serves on.
func TestPeerLost(t *testing.T) {
	seed := testenv.Seed(t)
	all := hosts(t, fakes(fake.New(fake.Config{Seed: seed})), link.Config{RingBytes: 1 << 13, NumMessages: 3}, leaseBytes)
	h, rng, n := all[0], rand.New(rand.NewPCG(seed, 1)), uint64(1)
	for ; n <= 3; n++ {
		require.NoError(t, h.send(n, n, rng))
	}
	h.link.Break(errFaulty)
	h.lost.Store(true)
	for rng = rand.New(rand.NewPCG(seed, 1)); ; n++ {
		if h.send(n, n, rng) != nil {
			break
		}
	}
	require.LessOrEqual(t, n, uint64(5), "there was room for one more at most")
	h.proxy.Load().Ring()
	h.proxy.Load().Stop()
	require.NoError(t, h.proxy.Load().Err())
}

// TestStartedAgain: a proxy stops while messages are under way both ways, and
// starts again, as for an update of the group: the device is shown what it did
// not release, and goes on sending.
func TestStartedAgain(t *testing.T) {
	seed := testenv.Seed(t)
	all := hosts(t, fakes(fake.New(fake.Config{Seed: seed})), link.Config{RingBytes: 1 << 13, NumMessages: 4}, leaseBytes)
	a, b := all[0], all[1]
	sends, receives := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 1))
	sent := uint64(0)
	for round := range 4 {
		for n := range uint64(2) {
			sent++
			require.NoError(t, a.send(n+1, sent, sends))
		}
		require.NoError(t, b.receive(1, sent-1, receives))
		require.NoError(t, b.await(mailCame, b.generation|2)) // shown, and not released
		for _, h := range all {
			h.proxy.Load().Stop()
			h.start(t)
		}
		require.NoError(t, b.receive(1, sent, receives), "round %d", round)
		for _, h := range all {
			h.proxy.Load().Stop()
			h.start(t)
		}
	}
}
