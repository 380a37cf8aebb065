package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/device/cuda/fifo/fifotest"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

// loop is a Remote that returns messages from the rank that they were sent to, when
// arrive is called. It has room for a few, and says so as a link does.
type loop struct {
	domain.Remote
	t       testing.TB
	ring    func()
	room    int
	ranks   []loopRank
	panics  bool
	posting func() // if not nil, is called first
}

type loopRank struct {
	leased         int64 // bytes; 0: nothing
	at             int64
	posted, come   []int64 // where, and how long, in turn
	sent, released int
	refused        bool // the bell is due
	lost           bool
}

const loopBytes = 1 << 12

func (l *loop) Ranks() rankset.Set     { return rankset.Upto(len(l.ranks)) }
func (l *loop) MaxMessageBytes() int64 { return loopBytes }

func (l *loop) ReserveAt(rank int, n int64) (int64, error) {
	if l.panics {
		panic("defect")
	}
	k := &l.ranks[rank]
	if k.lost {
		return 0, domain.ErrExited
	}
	if k.sent-k.released == l.room {
		k.refused = true
		return 0, transport.ErrWouldBlock
	}
	require.Zero(l.t, k.leased, "a lease is replaced")
	k.at, k.leased = int64(64*k.sent), n
	return k.at, nil
}

func (l *loop) Post(rank int, n int64) error {
	k := &l.ranks[rank]
	if l.posting != nil {
		l.posting()
	}
	require.True(l.t, k.leased >= n && n > 0)
	k.leased = 0
	if k.lost {
		return domain.ErrExited
	}
	k.posted = append(k.posted, k.at, n)
	k.sent++
	return nil
}

// arrive brings the oldest message, if there is one.
func (l *loop) arrive(rank int) {
	if k := &l.ranks[rank]; len(k.posted) > 0 {
		k.come, k.posted = append(k.come, k.posted[:2]...), k.posted[2:]
		l.ring()
	}
}

func (l *loop) NextAt(rank int) (off, n int64) {
	if k := &l.ranks[rank]; len(k.come) > 0 {
		return k.come[0], k.come[1]
	}
	return 0, 0
}

func (l *loop) Release(rank int) {
	k := &l.ranks[rank]
	require.NotEmpty(l.t, k.come)
	k.come = k.come[2:]
	k.released++
	if k.refused {
		k.refused = false
		l.ring()
	}
}

// bench is a proxy without its goroutine, and a device.
type bench struct {
	*round
	dev    *fifotest.Device
	remote *loop
}

func newBench(t testing.TB, ranks, length, room int) *bench {
	words := make([]uint64, fifo.Words(length))
	q, err := fifo.New(words, length)
	require.NoError(t, err)
	p, err := New(Config{NumRanks: ranks, Queue: q, Mail: make([]uint64, MailWords(ranks)), LeaseBytes: 512})
	require.NoError(t, err)
	b := &bench{dev: &fifotest.Device{Words: words, Num: uint64(length)}}
	b.remote = &loop{t: t, ring: p.Ring, room: room, ranks: make([]loopRank, ranks)}
	b.dev.Next.Store(q.Restart())
	b.round = &round{p: p, remote: b.remote, generation: b.dev.Next.Load()}
	p.rung.Store(true)
	return b
}

// kernel is what the device does with one rank: it sends so many messages, and
// reads them.
type kernel struct {
	b          *bench
	rank       int
	sent, read uint64
	most       uint64
	lens       []int64
	push       *fifotest.Push
	of         fifo.Descriptor
}

// step makes a little progress; false: all is done, or nothing can be now.
func (k *kernel) step(rng *rand.Rand, t testing.TB) bool {
	m, generation := k.b.mail(k.rank), k.b.generation
	if k.push != nil {
		switch k.push.Step() {
		case fifotest.Busy:
		case fifotest.Pushed:
			k.push = nil
		default: // it is full, or another one was faster
			*k.push = k.b.dev.Begin(k.of)
		}
		return true
	}
	leased, came := atomic.LoadUint64(&m[mailLease]), atomic.LoadUint64(&m[mailCame])
	if leased != 0 && leased-generation > k.sent+1 || came != 0 && came-generation > k.read+1 {
		t.Fatal("a lease, or a message, before the one before was used")
	}
	switch {
	case k.sent < k.most && leased == generation|(k.sent+1) && rng.IntN(2) == 0:
		k.sent++
		n := 1 + rng.Int64N(int64(m[mailLeaseBytes]))
		k.lens = append(k.lens, int64(m[mailLeaseAt]), n)
		k.begin(protocol.RemoteSend, uint64(n), leased)
	case came == generation|(k.read+1):
		require.Equal(t, k.lens[2*k.read:][:2], []int64{int64(m[mailCameAt]), int64(m[mailCameBytes])})
		k.read++
		k.begin(protocol.RemoteRelease, 0, came)
	default:
		return false
	}
	return true
}

func (k *kernel) begin(kind, n, number uint64) {
	k.of = fifo.Descriptor{What: kind | uint64(k.rank)<<rankShift, Bytes: n, Number: number}
	p := k.b.dev.Begin(k.of)
	k.push = &p
}

// TestEveryOrder: whatever order device, proxy and network move in, every
// message is posted once and shown once, in order, and no lease and no message
// comes before the one before was used. The proxy is rung as a link rings.
func TestEveryOrder(t *testing.T) {
	seed := testenv.Seed(t)
	for n := range testenv.NumSeeds(t, 100) {
		everyOrder(t, rand.New(rand.NewPCG(seed, n)))
	}
}

func everyOrder(t *testing.T, rng *rand.Rand) {
	b := newBench(t, 1+rng.IntN(4), 1<<rng.IntN(4), 1+rng.IntN(3))
	kernels, left := make([]kernel, len(b.remote.ranks)), uint64(0)
	for r := range kernels {
		kernels[r] = kernel{b: b, rank: r, most: 1 + rng.Uint64N(8)}
		left += kernels[r].most
	}
	for turn, read := 0, uint64(0); read < left; turn++ {
		if turn == 100_000 {
			t.Fatal("something never comes")
		}
		rank := rng.IntN(len(kernels))
		switch rng.IntN(3) {
		case 0:
			if _, err := b.step(); err != nil {
				t.Fatal(err)
			}
		case 1:
			b.remote.arrive(rank)
		default:
			k := &kernels[rank]
			read -= k.read
			k.step(rng, t)
			read += k.read
		}
	}
	stats := b.p.Stats()
	require.Equal(t, left, stats.Sent)
	require.Zero(t, stats.Dropped)
}

// ample is a Remote that always has room, and a message.
type ample struct{ domain.Remote }

func (ample) Ranks() rankset.Set                  { return rankset.Of(0) }
func (ample) MaxMessageBytes() int64              { return loopBytes }
func (ample) ReserveAt(int, int64) (int64, error) { return 0, nil }
func (ample) Post(int, int64) error               { return nil }
func (ample) NextAt(int) (off int64, n int64)     { return 0, 8 }
func (ample) Release(int)                         {}

func TestStepAllocatesNothing(t *testing.T) {
	b := newBench(t, 1, 8, 1)
	b.round.remote = ample{}
	number := b.generation
	require.Zero(t, testing.AllocsPerRun(100, func() {
		number++
		b.p.Ring()
		_, _ = b.step()
		b.dev.Try(fifo.Descriptor{What: protocol.RemoteSend, Bytes: 8, Number: number})
		b.dev.Try(fifo.Descriptor{What: protocol.RemoteRelease, Number: number})
		_, _ = b.step()
	}))
	require.Equal(t, Stats{Sent: 101, Released: 101}, b.p.Stats())
}

// TestBadDescriptors: what cannot be is an error with words, and nothing was
// done.
func TestBadDescriptors(t *testing.T) {
	for text, d := range map[string]fifo.Descriptor{
		"rank 2 of 2":               {What: protocol.RemoteSend | 2<<rankShift, Bytes: 8, Number: 1},
		"of kind 0, rank 1":         {What: 1 << rankShift, Bytes: 8, Number: 1},
		"of kind 3":                 {What: 3, Bytes: 8, Number: 1},
		"of kind 1, rank 0, number": {What: protocol.RemoteSend, Bytes: 8, Number: 2},
		"with 0 bytes":              {What: protocol.RemoteSend, Number: 1},
		"with 513 bytes":            {What: protocol.RemoteSend, Bytes: 513, Number: 1},
		"of kind 2":                 {What: protocol.RemoteRelease, Number: 1},
		"with 2 bytes":              {What: protocol.RemoteSend, Bytes: 2, Number: ^uint64(1<<protocol.FifoShift - 2)},
	} {
		b := newBench(t, 2, 4, 1)
		_, err := b.step()
		require.NoError(t, err)
		d.Number += b.generation
		b.dev.Try(d)
		_, err = b.step()
		require.ErrorContains(t, err, text)
		require.Zero(t, b.p.Stats())
	}
}

// TestBroken: the device is told of what cannot be, and the proxy can be started
// again.
func TestBroken(t *testing.T) {
	b := newBench(t, 1, 4, 1)
	p := b.p
	next, err := p.Start(b.remote)
	require.NoError(t, err)
	b.dev.Next.Store(next)
	b.dev.Try(fifo.Descriptor{What: 77})
	eventually(t, func() bool { return p.cfg.Queue.EndReason() != 0 })
	require.EqualValues(t, ReasonBroken, p.cfg.Queue.EndReason())
	p.Stop()
	require.ErrorContains(t, p.Err(), "kind 77")
	b.remote.ranks[0].leased = 0
	_, err = p.Start(b.remote)
	require.NoError(t, err)
	require.NoError(t, p.Err())
	p.Stop()
	p.Stop()
}

func eventually(t testing.TB, f func() bool) {
	t.Helper()
	for begin := time.Now(); !f(); time.Sleep(50 * time.Microsecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("it never comes")
		}
	}
}

func awaitLease(t testing.TB, p *Proxy, rank int, number uint64) {
	eventually(t, func() bool { return atomic.LoadUint64(&p.cfg.Mail[mailWords*rank+mailLease]) == number })
}

// TestDefect: a proxy that fails by itself says so to the device, too.
func TestDefect(t *testing.T) {
	b := newBench(t, 1, 4, 1)
	b.remote.panics = true
	_, err := b.p.Start(b.remote)
	require.NoError(t, err)
	eventually(t, func() bool { return b.p.cfg.Queue.EndReason() != 0 })
	require.EqualValues(t, ReasonDefect, b.p.cfg.Queue.EndReason())
	b.p.Stop()
	require.ErrorContains(t, b.p.Err(), "defect")
}

// TestFlush: a message is shown after what it says has become visible, and not
// at all if it cannot.
func TestFlush(t *testing.T) {
	b := newBench(t, 1, 4, 1)
	flushed, bad := 0, errors.New("no flush")
	b.p.cfg.Flush = func() error {
		require.Zero(t, b.mail(0)[mailCame])
		if flushed++; flushed > 1 {
			return bad
		}
		return nil
	}
	b.remote.ranks[0].come = []int64{0, 8, 64, 8}
	_, err := b.step()
	require.NoError(t, err)
	require.Equal(t, 1, flushed)
	require.Equal(t, b.generation+1, b.mail(0)[mailCame])
	b.mail(0)[mailCame] = 0
	b.dev.Try(fifo.Descriptor{What: protocol.RemoteRelease, Number: b.generation + 1})
	_, err = b.step()
	require.ErrorIs(t, err, bad)
	require.EqualValues(t, ReasonFlush, reasonOf(err))
	require.Zero(t, b.mail(0)[mailCame])
}

// TestStop: what the device had pushed is done, and threads that wait for room
// are told; what it was shown and did not release is shown again.
func TestStop(t *testing.T) {
	b := newBench(t, 2, 8, 4)
	p := b.p
	p.cfg.Nap, p.cfg.Spins = time.Second, 1
	next, err := p.Start(b.remote)
	require.NoError(t, err)
	_, err = p.Start(b.remote)
	require.ErrorIs(t, err, errRuns)
	b.dev.Next.Store(next)
	awaitLease(t, p, 0, next+1)
	awaitLease(t, p, 1, next+1)
	for r := range uint64(2) {
		require.Equal(t, fifotest.Pushed, b.dev.Try(fifo.Descriptor{What: protocol.RemoteSend | r<<rankShift, Bytes: 8, Number: next + 1}))
	}
	p.Stop()
	require.EqualValues(t, ReasonStopped, p.cfg.Queue.EndReason())
	require.NoError(t, p.Err())
	require.Equal(t, Stats{Sent: 2}, p.Stats())
	require.Equal(t, fifotest.Ended, b.dev.Try(fifo.Descriptor{}))

	for r := range 2 {
		b.remote.arrive(r)
		b.remote.ranks[r].leased = 0
	}
	for range 2 {
		next, err = p.Start(b.remote)
		require.NoError(t, err)
		eventually(t, func() bool { return atomic.LoadUint64(&p.cfg.Mail[mailWords+mailCame]) == next+1 })
		p.Stop()
		b.remote.ranks[0].leased, b.remote.ranks[1].leased = 0, 0
	}
}

// TestLost: a message to a rank that is lost is dropped, it gets no room any
// more, and others go on.
func TestLost(t *testing.T) {
	b := newBench(t, 2, 8, 8)
	_, err := b.step()
	require.NoError(t, err)
	b.remote.ranks[0].lost = true
	for i := uint64(1); i <= 3; i++ {
		for r := range uint64(2) {
			if r == 1 || i == 1 {
				b.dev.Try(fifo.Descriptor{What: protocol.RemoteSend | r<<rankShift, Bytes: 8, Number: b.generation + i})
			}
		}
		_, err = b.step()
		require.NoError(t, err)
	}
	require.Equal(t, Stats{Sent: 3, Dropped: 1}, b.p.Stats())
	require.Equal(t, b.generation+1, b.mail(0)[mailLease])
	require.Equal(t, b.generation+4, b.mail(1)[mailLease])
	require.Equal(t, b.generation+2, b.mail(0)[mailFull], "a first phase is not to wait for it")
	require.Zero(t, b.mail(1)[mailFull])
}

// TestFull: the device hears for which lease there was no room, and gets it when
// there is.
func TestFull(t *testing.T) {
	b := newBench(t, 1, 8, 2)
	for i := range uint64(3) {
		_, err := b.step()
		require.NoError(t, err)
		if i < 2 {
			require.Zero(t, b.mail(0)[mailFull])
			require.Equal(t, b.generation+i+1, b.mail(0)[mailLease])
			b.dev.Try(fifo.Descriptor{What: protocol.RemoteSend, Bytes: 8, Number: b.generation + i + 1})
		}
	}
	require.Equal(t, b.generation+3, b.mail(0)[mailFull])
	require.Equal(t, b.generation+2, b.mail(0)[mailLease])
	b.remote.ranks[0].released++
	b.p.Ring()
	_, err := b.step()
	require.NoError(t, err)
	require.Equal(t, b.generation+3, b.mail(0)[mailLease])
}

func TestNewRefuses(t *testing.T) {
	words := make([]uint64, fifo.Words(8))
	q, err := fifo.New(words, 8)
	require.NoError(t, err)
	good := Config{NumRanks: 2, Queue: q, Mail: make([]uint64, 16), LeaseBytes: 64}
	for text, change := range map[string]func(c *Config){
		"NumRanks is 0": func(c *Config) { c.NumRanks = 0 }, fmt.Sprintf("NumRanks is %d", rankset.MaxRanks+1): func(c *Config) { c.NumRanks = rankset.MaxRanks + 1 },
		"Queue is nil": func(c *Config) { c.Queue = nil }, "Mail has 15 words, 16": func(c *Config) { c.Mail = c.Mail[:15] },
		"LeaseBytes is 0": func(c *Config) { c.LeaseBytes = 0 }, "Nap 2s": func(c *Config) { c.Nap = 2 * time.Second },
		"Spins is -1": func(c *Config) { c.Spins = -1 },
	} {
		c := good
		change(&c)
		_, err := New(c)
		require.ErrorContains(t, err, text)
	}
	_, err = New(good)
	require.NoError(t, err)
}
