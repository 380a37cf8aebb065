package link

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// log is a handler that remembers.
type log struct {
	mu    sync.Mutex
	up    uint64
	heard map[int][]string
	ended map[int]Ending
	why   map[int]error
	ticks int
}

func newLog() *log {
	return &log{heard: map[int][]string{}, ended: map[int]Ending{}, why: map[int]error{}}
}

func (l *log) Up(rank int)   { l.mu.Lock(); l.up |= 1 << rank; l.mu.Unlock() }
func (l *log) Crashed(error) {}
func (l *log) Tick()         { l.mu.Lock(); l.ticks++; l.mu.Unlock() }

func (l *log) Received(rank int, m []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard[rank] = append(l.heard[rank], string(m))
}

func (l *log) Ended(rank int, how Ending, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended[rank], l.why[rank] = how, err
}

func (l *log) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		ok := f()
		l.mu.Unlock()
		if ok {
			return
		}
		if time.Since(begin) > testTimeout {
			t.Fatal("still not: ", what, l.ended, l.why)
		}
	}
}

func loopback() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:0") }

func newID() (id wire.PeerID) { rand.Read(id[:]); return id }

type member struct {
	*Controls
	log      *log
	listener *Listener
	id       wire.PeerID
	counters wire.Counters
}

// assembly connects n ranks.
func assembly(t *testing.T, n int, keys func(rank int) *wire.Keyring) []*member {
	members, all := make([]*member, n), map[int]Participant{}
	for r := range n {
		e, err := Listen(loopback())
		require.NoError(t, err)
		members[r] = &member{log: newLog(), listener: e, id: newID()}
		all[r] = Participant{ID: members[r].id, Addr: e.Addr()}
	}
	for r, m := range members {
		others := map[int]Participant{}
		for o, a := range all {
			if o != r {
				others[o] = a
			}
		}
		var err error
		m.Controls, err = StartControls(ControlConfig{
			Rank: r, ID: m.id, Keys: keys(r), Counters: &m.counters, Tick: 5 * time.Millisecond,
		}, m.listener, others, m.log)
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close() })
	}
	return members
}

func oneKey() func(int) *wire.Keyring {
	k := wire.GenerateKeyring()
	return func(int) *wire.Keyring { return k }
}

func holdings() string {
	for range 200 { // goroutines of earlier tests may still be ending
		if runtime.NumGoroutine() <= 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	return fmt.Sprintf("%d descriptors, %d goroutines", len(fds), runtime.NumGoroutine())
}

// TestControls: every rank hears every other, in order, and nothing is left.
func TestControls(t *testing.T) {
	warm := assembly(t, 2, oneKey())
	for _, m := range warm {
		require.NoError(t, m.Close())
	}
	before := holdings()
	const n, num = 5, 200
	members := assembly(t, n, oneKey())
	for r, m := range members {
		m.log.until(t, "everybody is up", func() bool { return m.log.up == (1<<n-1)&^(1<<r) })
	}
	for i := range num {
		for r, m := range members {
			for to := range n {
				if to != r {
					for !m.Send(to, fmt.Appendf(bytes.Repeat([]byte{'.'}, i), "%d", i)) {
						runtime.Gosched()
					}
				}
			}
		}
	}
	for r, m := range members {
		for from := range n {
			if from == r {
				continue
			}
			m.log.until(t, "all messages", func() bool { return len(m.log.heard[from]) == num })
			m.log.mu.Lock()
			heard := m.log.heard[from]
			m.log.mu.Unlock()
			for i, got := range heard {
				require.Equal(t, string(fmt.Appendf(bytes.Repeat([]byte{'.'}, i), "%d", i)), got)
			}
		}
	}
	for _, m := range members {
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())
	}
	require.Equal(t, before, holdings())
}

// TestShutdown: a rank that closes has not died; a rank that is cut off by its system
// has.
func TestShutdown(t *testing.T) {
	members := assembly(t, 3, oneKey())
	for r, m := range members {
		m.log.until(t, "everybody is up", func() bool { return m.log.up == 0b111&^(1<<r) })
	}
	require.NoError(t, members[1].Close())
	for _, r := range []int{0, 2} {
		l := members[r].log
		l.until(t, "the end", func() bool { return l.ended[1] != 0 })
		require.Equal(t, EndShutdown, l.ended[1])
	}
	require.False(t, members[0].Send(1, []byte("x")))
	require.True(t, members[0].Send(2, []byte("x")))
	require.False(t, members[0].Send(2, make([]byte, MaxControlBytes+1)))
}

// TestWrongKey: a rank without the key is not taken for a rank, and is counted.
func TestWrongKey(t *testing.T) {
	keys := []*wire.Keyring{wire.GenerateKeyring(), wire.GenerateKeyring()}
	members := assembly(t, 2, func(r int) *wire.Keyring { return keys[r] })
	l := members[1].log
	l.until(t, "the dialler's end", func() bool { return l.ended[0] != 0 })
	require.Zero(t, members[0].log.up)
	refused := uint64(0)
	members[0].counters.Each(func(_ wire.Reason, n uint64) { refused += n })
	require.NotZero(t, refused)
}

// TestHostileListener: bytes of unauthenticated clients, however many come and however they
// come, change nothing, and are bounded.
func TestHostileListener(t *testing.T) {
	e, err := Listen(loopback())
	require.NoError(t, err)
	addr, id, friend := e.Addr(), newID(), newID()
	l := newLog()
	keys := wire.GenerateKeyring()
	c, err := StartControls(ControlConfig{
		Rank: 0, ID: id, Keys: keys, Tick: 5 * time.Millisecond, HandshakeTimeout: 200 * time.Millisecond,
	}, e, map[int]Participant{1: {ID: friend}}, l)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	var fds []*sys.FD
	defer func() { sys.CloseAll(fds...) }()
	for i := range 3 * maxPending {
		fd, err := sys.DialTCP(addr, sys.TCPOptions{})
		if err != nil && !errors.Is(err, sys.ErrInProgress) {
			require.NoError(t, err)
		}
		fds = append(fds, fd)
		junk := make([]byte, 1+i*7%300)
		rand.Read(junk)
		time.Sleep(200 * time.Microsecond)
		_, _ = sys.Write(fd, junk)
	}
	l.mu.Lock()
	require.Zero(t, l.up)
	l.mu.Unlock()
	begin := time.Now()
	for _, fd := range fds { // each is closed in bounded time
		for time.Since(begin) < testTimeout {
			_, err := sys.WaitReadable([]*sys.FD{fd}, time.Now().Add(testTimeout))
			require.NoError(t, err)
			if n, err := sys.Read(fd, make([]byte, 100)); err == nil && n == 0 || err != nil && !errors.Is(err, sys.ErrAgain) {
				break
			}
		}
	}
	f, err := Listen(loopback())
	require.NoError(t, err)
	m := newLog()
	d, err := StartControls(ControlConfig{Rank: 1, ID: friend, Keys: keys, Tick: time.Second}, f,
		map[int]Participant{0: {ID: id, Addr: addr}}, m)
	require.NoError(t, err)
	l.until(t, "the friend is up", func() bool { return l.up == 1<<1 })
	require.NoError(t, d.Close())
}

// mistaken is a handler that panics, and is slow to hear of it.
type mistaken struct {
	*log
	entered, leave chan struct{}
	once           sync.Once
}

func (m *mistaken) Tick() { panic("a mistake") }

func (m *mistaken) Ended(int, Ending, error) {
	m.once.Do(func() { close(m.entered) })
	<-m.leave
}

// TestCloseAfterPanic: Close waits for the handler also then; what the handler
// uses may be gone after that.
func TestCloseAfterPanic(t *testing.T) {
	e, err := Listen(loopback())
	require.NoError(t, err)
	m := &mistaken{log: newLog(), entered: make(chan struct{}), leave: make(chan struct{})}
	others := map[int]Participant{1: {ID: newID(), Addr: e.Addr()}}
	c, err := StartControls(ControlConfig{ID: newID(), Keys: oneKey()(0), Tick: time.Millisecond}, e, others, m)
	require.NoError(t, err)
	<-m.entered
	select {
	case <-c.done:
		t.Error("the goroutine is taken for ended while it is in the handler")
	default:
	}
	close(m.leave)
	require.NoError(t, c.Close())
}
