package endpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

func seedOf(t testing.TB) uint64 {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("MOEWIRE_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("MOEWIRE_TEST_SEED=%d", seed)
	return seed
}

// post loses, doubles and reorders handshakes, as its seed says.
type post struct {
	mu    sync.Mutex
	rng   *rand.Rand
	lossy bool
	wg    sync.WaitGroup
	ended bool
	count int
}

func (p *post) carry(deliver func(Handshake), n Handshake) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.count++
	copies, delay := 1, time.Duration(0)
	if p.lossy {
		copies = []int{0, 1, 1, 1, 2}[p.rng.IntN(5)]
		delay = time.Duration(p.rng.IntN(3000)) * time.Microsecond
	}
	for range copies {
		p.wg.Add(1)
		time.AfterFunc(delay, func() {
			defer p.wg.Done()
			deliver(n)
		})
		delay *= 3
	}
}

func (p *post) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.wg.Wait()
}

// node is one process: a device, a store, a poller.
type node struct {
	w     *world
	self  Peer
	dev   *fake.Transport
	store *Store
	stop  chan struct{}
	ended chan struct{}
	life  int
	sent  sync.Map // request number -> status of its completion
	seen  func([]transport.Completion)
}

// world is some nodes on one network.
type world struct {
	seed  uint64
	net   *fake.Network
	post  *post
	mu    sync.Mutex // guards nodes' stores
	nodes []*node
	held  chan string // provider calls that were made under a store's lock
	cfg   func(*Config)
	m     mutant
	still atomic.Bool // the probe takes no time
}

const capacity = 4

func newWorld(seed uint64, n int, network fake.Config, cfg func(*Config)) *world {
	return brokenWorld(sound, seed, n, network, cfg)
}

func brokenWorld(m mutant, seed uint64, n int, network fake.Config, cfg func(*Config)) *world {
	w := &world{
		seed: seed, m: m, held: make(chan string, 16), cfg: cfg,
		post: &post{rng: rand.New(rand.NewPCG(seed, 7))},
	}
	network.Seed = seed
	network.Probe = w.probe
	w.net = fake.New(network)
	for i := range n {
		nd := &node{w: w, self: Peer(i), dev: w.net.Transport()}
		w.nodes = append(w.nodes, nd)
	}
	for _, nd := range w.nodes {
		nd.start()
	}
	return w
}

// probe finds a lock that stays held during a call into the provider.
func (w *world) probe(call string) {
	w.mu.Lock()
	nodes := append([]*node(nil), w.nodes...)
	w.mu.Unlock()
	for _, nd := range nodes {
		if s := nd.now(); s != nil && !(w.still.Load() && freeAtOnce(s)) && !free(s, time.Second) {
			select {
			case w.held <- call:
			default:
			}
		}
	}
}

// probed has the probe called by what the network does not: an endpoint's ID and
// Local, which a carrier may compute.
type probed struct {
	transport.Transport
	w *world
}

func (p *probed) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	ep, err := p.Transport.NewEndpoint(spec)
	if err != nil {
		return nil, err
	}
	return &probedEndpoint{ep, p.w}, nil
}

type probedEndpoint struct {
	transport.Endpoint
	w *world
}

func (e *probedEndpoint) ID() transport.EndpointID { e.w.probe("ID"); return e.Endpoint.ID() }
func (e *probedEndpoint) Local() []byte            { e.w.probe("Local"); return e.Endpoint.Local() }

// freeAtOnce is free without time passing, which a bubble's clock would show. A goroutine
// that holds the lock for a moment releases it, if only after the machine has let it run
// again. So this sleeps in the system, of which bubbles know nothing, for up to 5 s.
func freeAtOnce(s *Store) bool {
	short := syscall.NsecToTimespec(int64(100 * time.Microsecond))
	for range 50_000 {
		if s.mu.TryRLock() {
			s.mu.RUnlock()
			return true
		}
		_ = syscall.Nanosleep(&short, nil) // cut short by a signal, it is shorter
	}
	return false
}

func free(s *Store, testTimeout time.Duration) bool {
	for until := time.Now().Add(testTimeout); ; {
		if s.mu.TryRLock() {
			s.mu.RUnlock()
			return true
		}
		if time.Now().After(until) {
			return false
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func (nd *node) now() *Store {
	nd.w.mu.Lock()
	defer nd.w.mu.Unlock()
	return nd.store
}

// start begins a life of the node: its first, or one after a restart.
func (nd *node) start() {
	nd.life++
	cfg := Config{
		Transport: &probed{nd.dev, nd.w}, Cap: capacity, Epoch: uint64(nd.life),
		Spec:       transport.EndpointSpec{SendDepth: 16, RecvDepth: 16},
		ConnectFor: 2 * time.Second, DrainFor: 5 * time.Second,
		RetryAfter: 2 * time.Millisecond, ResendAfter: 5 * time.Millisecond,
		Send: nd.send,
	}
	if nd.w.cfg != nil {
		nd.w.cfg(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		panic(err)
	}
	s.cfg.Prepare = func(r Ref) error {
		_, err := s.PostRecv(r, make([]transport.RecvRequest, s.cfg.Spec.RecvDepth*3/4))
		return err
	}
	nd.w.mu.Lock()
	nd.store = s
	nd.w.mu.Unlock()
	s.Start(time.Millisecond)
	nd.stop, nd.ended = make(chan struct{}), make(chan struct{})
	go nd.poll(s, nd.stop, nd.ended)
}

func (nd *node) send(to Peer, n Handshake) {
	bytes := n.Append(nil)
	parsed, err := ParseHandshake(bytes)
	if err != nil {
		panic(err)
	}
	from := nd.self
	nd.w.post.carry(func(n Handshake) {
		if int(to) < len(nd.w.nodes) {
			nd.w.nodes[to].now().Deliver(from, n)
		}
	}, parsed)
}

func (nd *node) poll(s *Store, stop, ended chan struct{}) {
	defer close(ended)
	done := make([]transport.Completion, 16)
	for {
		select {
		case <-stop:
			return
		default:
		}
		if n, err := s.Poll(done, nd.record); err != nil {
			return
		} else if n == 0 {
			_ = nd.dev.Wait(time.Millisecond)
		}
	}
}

// record remembers how the numbered sends have ended.
func (nd *node) record(done []transport.Completion) {
	if nd.seen != nil {
		nd.seen(done)
	}
	for _, c := range done {
		if c.Op == transport.OpSend && c.ID != 0 {
			nd.sent.Store(c.ID, c.Status)
		}
	}
}

// halt ends the poller and closes the store.
func (nd *node) halt() error {
	close(nd.stop)
	<-nd.ended
	bound := 10 * time.Second
	if nd.w.m != sound {
		bound = time.Second // some cannot be closed
	}
	return nd.now().Close(time.Now().Add(bound))
}

func (w *world) close() error { return w.closeFor(capacity) }

func (w *world) closeFor(bound int) error {
	var errs []error
	w.net.Settle()
	for _, nd := range w.nodes {
		if err := nd.halt(); err != nil {
			errs = append(errs, fmt.Errorf("node %d: %w", nd.self, err))
		}
	}
	w.post.end()
	for _, nd := range w.nodes {
		errs = append(errs, nd.checkBooks(bound))
		errs = append(errs, nd.dev.Close())
	}
	select {
	case call := <-w.held:
		errs = append(errs, fmt.Errorf("%s was called under a store's lock", call))
	default:
	}
	return errors.Join(errs...)
}

// checkBooks compares with what the device has counted (ES1, ES6, ES7).
func (nd *node) checkBooks(bound int) error {
	c := nd.dev.Counts()
	switch {
	case c.MaxQueuePairs > bound:
		return fmt.Errorf("node %d had %d queue pairs, cap %d", nd.self, c.MaxQueuePairs, bound)
	case c.QueuePairs != 0:
		return fmt.Errorf("node %d has left %d queue pairs", nd.self, c.QueuePairs)
	case c.BusyCloses != 0:
		return fmt.Errorf("node %d: %d queue pairs were to be destroyed while requests were outstanding", nd.self, c.BusyCloses)
	case c.Posted() != c.Ended():
		return fmt.Errorf("node %d: %d requests posted, %d ended", nd.self, c.Posted(), c.Ended())
	}
	return nil
}
