package fabric

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// soon bounds what must end, on a slow machine, too.
const soon = 30 * time.Second

// waitLimit is short where a test is expected to wait in vain.
func waitLimit(m mutant) time.Time {
	if m != sound {
		return time.Now().Add(300 * time.Millisecond)
	}
	return inTime()
}

func inTime() time.Time { return time.Now().Add(soon) }

// world is some fabrics on one network, each the others' peer by its index,
// and couriers that carry their handshakes, badly if they are lossy.
type world struct {
	net     *fake.Network
	devs    []*fake.Transport
	fabs    []*Fabric
	mu      sync.Mutex
	rng     *rand.Rand
	lossy   bool
	observe func(from, to int, handshake []byte)
	ended   sync.WaitGroup
	delayed sync.WaitGroup
}

func newWorld(tb testing.TB, seed uint64, n int, network fake.Config, adjust func(*Config)) *world {
	tb.Helper()
	w, err := openWorld(sound, seed, n, network, adjust)
	require.NoError(tb, err)
	return w
}

func openWorld(m mutant, seed uint64, n int, network fake.Config, adjust func(*Config)) (*world, error) {
	plant(m)
	network.Seed = seed
	w := &world{net: fake.New(network), rng: rand.New(rand.NewPCG(seed, 11))}
	for range n {
		dev := w.net.Transport()
		cfg := Config{Transport: dev, ConnectFor: 5 * time.Second, DrainFor: 20 * time.Second}
		if adjust != nil {
			adjust(&cfg)
		}
		f, err := Open(cfg)
		if err != nil {
			return nil, err
		}
		w.devs, w.fabs = append(w.devs, dev), append(w.fabs, f)
	}
	w.carryAll()
	return w, nil
}

// carryAll has couriers for all fabrics.
func (w *world) carryAll() {
	for i := range w.fabs {
		w.ended.Add(1)
		go w.carry(i)
	}
}

// carry takes the handshakes of one fabric to where they belong until it is closed.
func (w *world) carry(from int) {
	defer w.ended.Done()
	buf, f := make([]byte, MaxHandshakeBytes), w.fabric(from)
	for {
		to, n, ok, err := f.Next(buf, inTime())
		if err != nil {
			return
		}
		if !ok || int(to) >= len(w.fabs) {
			continue
		}
		copies, delay := w.copiesOf(from, int(to), buf[:n])
		for range copies {
			w.deliver(from, int(to), append([]byte(nil), buf[:n]...), delay)
			delay *= 3
		}
	}
}

func (w *world) fabric(i int) *Fabric {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fabs[i]
}

func (w *world) copiesOf(from, to int, handshake []byte) (copies int, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.observe != nil {
		w.observe(from, to, handshake)
	}
	if !w.lossy {
		return 1, 0
	}
	return []int{0, 1, 1, 1, 2}[w.rng.IntN(5)], time.Duration(w.rng.IntN(3000)) * time.Microsecond
}

func (w *world) deliver(from, to int, handshake []byte, delay time.Duration) {
	w.delayed.Add(1)
	time.AfterFunc(delay, func() {
		defer w.delayed.Done()
		_ = w.fabric(to).Deliver(endpoint.Peer(from), handshake)
	})
}

// close closes everything; what is left is an error.
func (w *world) close(tb testing.TB) {
	tb.Helper()
	var closing sync.WaitGroup
	errs := make([]error, len(w.fabs))
	for i, f := range w.fabs {
		closing.Add(1)
		go func() { defer closing.Done(); errs[i] = f.Close(inTime()) }()
	}
	closing.Wait()
	w.ended.Wait()
	w.delayed.Wait()
	for i, err := range errs {
		require.NoError(tb, err, "fabric %d", i)
		c := w.devs[i].Counts()
		require.Zero(tb, c.QueuePairs, "fabric %d has left queue pairs", i)
		require.Zero(tb, c.Regions, "fabric %d has left regions", i)
		require.Zero(tb, c.BusyCloses, "fabric %d has closed too early", i)
		require.Equal(tb, c.Posted(), c.Ended(), "fabric %d", i)
		require.Zero(tb, w.fabs[i].outstanding.Load(), "fabric %d", i)
	}
}

func (w *world) connect(tb testing.TB) {
	tb.Helper()
	for i, f := range w.fabs {
		for j := range w.fabs {
			if i != j {
				require.NoError(tb, f.Connect(endpoint.Peer(j), inTime()))
			}
		}
	}
}

// memory registers n bytes with a fabric.
func memory(tb testing.TB, f *Fabric, n int) ([]byte, RegionID, transport.RemoteRegion) {
	tb.Helper()
	mem := make([]byte, n)
	id, err := f.Register(mem, transport.AccessRead|transport.AccessWrite)
	require.NoError(tb, err)
	at, err := f.Remote(id)
	require.NoError(tb, err)
	return mem, id, at
}

func post(tb testing.TB, f *Fabric, r Request) op.Ref {
	tb.Helper()
	ref, err := f.Post(&r)
	require.NoError(tb, err)
	return ref
}

// done waits for an operation that must end well, and drops it.
func done(tb testing.TB, f *Fabric, r op.Ref) op.Result {
	tb.Helper()
	res, err := f.Wait(r, inTime())
	require.NoError(tb, err)
	require.NoError(tb, res.Err)
	require.Equal(tb, op.Done, res.State)
	require.True(tb, res.Released)
	require.NoError(tb, f.Drop(r))
	return res
}

// failed waits for an operation that must fail, until it is released.
func failed(tb testing.TB, f *Fabric, r op.Ref, want error) {
	tb.Helper()
	res, err := f.WaitReleased(r, inTime())
	require.NoError(tb, err)
	require.ErrorIs(tb, res.Err, want)
	require.NoError(tb, f.Drop(r))
}

// goroutines waits until there are no more than before.
func goroutines(tb testing.TB, before int) {
	tb.Helper()
	for end := inTime(); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			tb.Fatalf("goroutines are left:\n%s", buf[:runtime.Stack(buf, true)])
		}
	}
}
