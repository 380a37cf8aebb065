package link

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/wire"
)

// relay stands between ranks and a listener, as a device in a network does,
// and resets connections.
type relay struct {
	net.Listener
	to      netip.AddrPort
	refuse  atomic.Int64 // so many connections end before anything was said
	alter   atomic.Int64 // in so many one bit of what either side says first is another
	mu      sync.Mutex
	conns   []net.Conn
	stopped bool
	seen    bytes.Buffer // all that went by
}

func newRelay(t *testing.T, to netip.AddrPort) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{Listener: l, to: to}
	go r.serve()
	t.Cleanup(func() { _ = l.Close(); r.reset(true) })
	return r
}

func (r *relay) addr() netip.AddrPort { return netip.MustParseAddrPort(r.Listener.Addr().String()) }

func (r *relay) serve() {
	for {
		in, err := r.Accept()
		if err != nil {
			return
		}
		if r.refuse.Add(-1) >= 0 {
			_ = in.Close()
			continue
		}
		out, err := net.Dial("tcp", r.to.String())
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		stopped := r.stopped
		r.mu.Unlock()
		if stopped {
			r.reset(true)
			return
		}
		altered := r.alter.Add(-1) >= 0
		go r.carry(in, out, altered && r.alter.Load()%2 == 0)
		go r.carry(out, in, altered && r.alter.Load()%2 != 0)
	}
}

func (r *relay) carry(from, to net.Conn, altered bool) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 3000) // frames are cut anywhere
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if altered {
			buf[rand.IntN(n)] ^= 1 << rand.IntN(8)
			altered = false
		}
		r.mu.Lock()
		r.seen.Write(buf[:n])
		r.mu.Unlock()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// reset ends all connections without a word; what is under way is lost.
func (r *relay) reset(forGood bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = r.stopped || forGood
	for _, c := range r.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	r.conns = nil
}

// relayed is two ranks that reach each other over relays.
func relayed(t *testing.T, handler func(rank int, l *log) Handler) (members [2]*member, relays [2]*relay) {
	return relayedWith(t, wire.ProtectDigest, handler)
}

func relayedWith(t *testing.T, protection wire.Protection, handler func(rank int, l *log) Handler) (members [2]*member, relays [2]*relay) {
	keys := oneKey()
	for r := range members {
		e, err := Listen(loopback())
		require.NoError(t, err)
		members[r] = &member{log: newLog(), listener: e, id: newID()}
		relays[r] = newRelay(t, e.Addr())
	}
	for r, m := range members {
		var h Handler = m.log
		if handler != nil {
			h = handler(r, m.log)
		}
		var err error
		m.Controls, err = StartControls(ControlConfig{
			Rank: r, ID: m.id, Keys: keys(r), Protection: protection, Tick: 5 * time.Millisecond,
		}, m.listener, map[int]Participant{1 - r: {ID: members[1-r].id, Addr: relays[1-r].addr()}}, h)
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close() })
	}
	return members, relays
}

func (m *member) awaitUp(t *testing.T, ranks uint64) {
	m.log.until(t, "up", func() bool { return m.log.up == ranks })
}

// TestReconnected: connections that break while both processes live are reconnected, over
// and over; everything arrives once and in order, and no peer has ended.
func TestReconnected(t *testing.T) {
	for _, protection := range []wire.Protection{wire.ProtectDigest, wire.ProtectEncrypt} {
		t.Run(protection.String(), func(t *testing.T) { reconnects(t, protection) })
	}
}

func reconnects(t *testing.T, protection wire.Protection) {
	seed := seedOf(t)
	members, relays := relayedWith(t, protection, nil)
	for r, m := range members {
		m.awaitUp(t, 1<<(1-r))
	}
	const num = 3000
	var senders sync.WaitGroup
	for r, m := range members {
		senders.Add(1)
		go func() {
			defer senders.Done()
			for i := range num {
				for !m.Send(1-r, fmt.Appendf(make([]byte, i%200), "%d", i)) {
					time.Sleep(time.Millisecond)
				}
			}
		}()
	}
	rng, sent := rand.New(rand.NewPCG(seed, 0)), make(chan bool)
	go func() { senders.Wait(); close(sent) }()
	reconnects := func() bool { return members[0].Stats().Reconnects > 0 && members[1].Stats().Reconnects > 0 }
	begin := time.Now()
	for cutting, again := true, 0; cutting || again < 5 || !reconnects(); { // also what is sent last is cut
		require.Less(t, time.Since(begin), testTimeout)
		relays[rng.IntN(2)].reset(false)
		select {
		case <-sent:
			cutting = false
			again++
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
		case <-time.After(time.Duration(rng.IntN(20)) * time.Millisecond):
		}
	}
	for r, m := range members {
		m.log.until(t, "everything has come", func() bool { return len(m.log.heard[1-r]) >= num })
		m.log.mu.Lock()
		for i, got := range m.log.heard[1-r] {
			require.Equal(t, string(fmt.Appendf(make([]byte, i%200), "%d", i)), got)
		}
		require.Len(t, m.log.heard[1-r], num)
		require.Empty(t, m.log.ended)
		m.log.mu.Unlock()
		require.NotZero(t, m.Stats().Reconnects)
	}
	require.NoError(t, members[1].Close())
	members[0].log.until(t, "the shutdown notice", func() bool { return members[0].log.ended[1] == EndShutdown })
}

// TestShutdownOverABrokenConnection: a shutdown notice that is lost is sent again.
func TestShutdownOverABrokenConnection(t *testing.T) {
	for closer := range 2 {
		members, relays := relayed(t, nil)
		for r, m := range members {
			m.awaitUp(t, 1<<(1-r))
		}
		relays[0].reset(false) // all go through the lower one's
		require.NoError(t, members[closer].Close())
		l := members[1-closer].log
		l.until(t, "the end", func() bool { return l.ended[closer] != 0 })
		require.Equal(t, EndShutdown, l.ended[closer], "rank %d closed", closer)
	}
}

// reluctant is a handler that does not come back from its first message before
// it is told so.
type reluctant struct {
	*log
	free chan struct{}
}

func (h *reluctant) Received(rank int, m []byte) {
	<-h.free
	h.log.Received(rank, m)
}

// TestShutdownBehindMuch: a shutdown notice finds room, however much waits, and is heard
// behind all of it.
func TestShutdownBehindMuch(t *testing.T) {
	h := &reluctant{free: make(chan struct{})}
	members, _ := relayed(t, func(rank int, l *log) Handler {
		if rank == 0 {
			return l
		}
		h.log = l
		return h
	})
	members[0].awaitUp(t, 1<<1)
	num := 0
	for members[0].Send(1, make([]byte, MaxControlBytes)) {
		num++
	}
	require.NotZero(t, num)
	closed := make(chan error, 1)
	go func() { closed <- members[0].Close() }()
	eventually(t, members[0].stop.Load)
	close(h.free)
	require.NoError(t, <-closed)
	h.until(t, "the end", func() bool { return h.ended[0] != 0 })
	require.Equal(t, EndShutdown, h.ended[0])
	require.Len(t, h.heard[0], num)
}

// mortal is a handler of a process that ends, as far as others can see, with the first
// message.
type mortal struct{ *log }

func (mortal) Received(int, []byte) { panic("the end") }

// TestDead: a rank that has ended without a word is known to have, from below and from
// above.
func TestDead(t *testing.T) {
	for closing := range 2 {
		listeners, ids, logs := [2]*Listener{}, [2]wire.PeerID{newID(), newID()}, [2]*log{newLog(), newLog()}
		for r := range listeners {
			var err error
			listeners[r], err = Listen(loopback())
			require.NoError(t, err)
		}
		addrs := [2]netip.AddrPort{listeners[0].Addr(), listeners[1].Addr()}
		var controls [2]*Controls
		for r, keys := 0, oneKey(); r < 2; r++ {
			var h Handler = logs[r]
			if r == closing {
				h = mortal{logs[r]}
			}
			var err error
			controls[r], err = StartControls(ControlConfig{Rank: r, ID: ids[r], Keys: keys(r), Tick: time.Hour},
				listeners[r], map[int]Participant{1 - r: {ID: ids[1-r], Addr: addrs[1-r]}}, h)
			require.NoError(t, err)
			defer controls[r].Close()
		}
		other := 1 - closing
		logs[other].until(t, "up", func() bool { return logs[other].up != 0 })
		require.True(t, controls[other].Send(closing, []byte("x")))
		logs[other].until(t, "the end", func() bool { return logs[other].ended[closing] != 0 })
		require.Equal(t, EndExited, logs[other].ended[closing])
	}
}

// TestDroppedHandshakes: a listener that drops pending connections, because there are
// too many, is tried again.
func TestDroppedHandshakes(t *testing.T) {
	firstHandshakes(t, func(r *relay) { r.refuse.Store(firstTries - 1) })
}

// TestAlteredHandshakes: one that was changed on its way is tried again, whichever
// bit it is, though a frame that the other side has not signed looks the same.
func TestAlteredHandshakes(t *testing.T) {
	for range 6 {
		firstHandshakes(t, func(r *relay) { r.alter.Store(firstTries - 1) })
	}
}

// firstHandshakes has two ranks connect through a relay.
func firstHandshakes(t *testing.T, does func(r *relay)) {
	e, err := Listen(loopback())
	require.NoError(t, err)
	r := newRelay(t, e.Addr())
	does(r)
	f, err := Listen(loopback())
	require.NoError(t, err)
	ids, keys, logs := [2]wire.PeerID{newID(), newID()}, oneKey(), [2]*log{newLog(), newLog()}
	// A frame with another length is waited for, for so long.
	a, err := StartControls(ControlConfig{Rank: 0, ID: ids[0], Keys: keys(0), Tick: time.Millisecond, HandshakeTimeout: 200 * time.Millisecond}, e,
		map[int]Participant{1: {ID: ids[1], Addr: f.Addr()}}, logs[0])
	require.NoError(t, err)
	defer a.Close()
	b, err := StartControls(ControlConfig{Rank: 1, ID: ids[1], Keys: keys(1), Tick: time.Millisecond}, f,
		map[int]Participant{0: {ID: ids[0], Addr: r.addr()}}, logs[1])
	require.NoError(t, err)
	defer b.Close()
	logs[1].until(t, "up", func() bool { return logs[1].up == 1 })
	require.Empty(t, logs[1].ended)
}

// TestNoDescriptors: a listener from which nothing can be taken is tried once
// per tick, not all the time, and works again afterwards.
func TestNoDescriptors(t *testing.T) {
	e, err := Listen(loopback())
	require.NoError(t, err)
	addr, friend, l := e.Addr(), newID(), newLog()
	id, keys := newID(), oneKey()
	c, err := StartControls(ControlConfig{ID: id, Keys: keys(0), Tick: 2 * time.Millisecond}, e,
		map[int]Participant{1: {ID: friend}}, l)
	require.NoError(t, err)
	defer c.Close()
	f, err := Listen(loopback())
	require.NoError(t, err)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: before.Max}))
	restore := sync.OnceFunc(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) })
	defer restore()
	require.NoError(t, syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(addr.Port()), Addr: [4]byte{127, 0, 0, 1}}))
	ticks := func() int { l.mu.Lock(); defer l.mu.Unlock(); return l.ticks }
	first := ticks()
	eventually(t, func() bool { return ticks() >= first+20 })
	failures := c.Stats().AcceptFailures
	require.NotZero(t, failures)
	require.LessOrEqual(t, failures, uint64(ticks()-first+2), "it does not rest")
	restore()
	d, err := StartControls(ControlConfig{Rank: 1, ID: friend, Keys: keys(1), Tick: time.Millisecond}, f,
		map[int]Participant{0: {ID: id, Addr: addr}}, newLog())
	require.NoError(t, err)
	l.until(t, "the friend is up", func() bool { return l.up == 1<<1 })
	require.NoError(t, d.Close())
}

// TestOutbox: against a list that forgets nothing.
func TestOutbox(t *testing.T) {
	rng := rand.New(rand.NewPCG(seedOf(t), 0))
	for range 200 {
		var box outbox
		var all []string
		next, arrived := 0, 0
		for range 300 {
			switch rng.IntN(4) {
			case 0:
				m := fmt.Sprint(rng.IntN(1 << rng.IntN(30)))
				box.add(uint8(len(m)), []byte(m))
				all = append(all, m)
			case 1:
				code, m, ok := box.take()
				require.Equal(t, next < len(all), ok)
				if ok {
					require.Equal(t, all[next], string(m))
					require.EqualValues(t, len(m), code)
					next++
				}
			case 2:
				n := rng.IntN(len(all) + 2)
				if ok := box.arrived(uint64(n)); ok {
					arrived = max(arrived, n)
				} else {
					require.Greater(t, n, next)
				}
			case 3:
				n := rng.IntN(len(all) + 2)
				if box.resume(uint64(n)) {
					require.True(t, n >= arrived && n <= next)
					next, arrived = n, n
				} else {
					require.True(t, n < arrived || n > next)
				}
			}
			require.EqualValues(t, len(all)-arrived, box.num)
		}
	}
}
