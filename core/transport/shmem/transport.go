package shmem

import (
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// Config says what Open makes.
type Config struct {
	// NumEndpoints is Limits.NumEndpoints, 1 to MaxEndpoints; 0: 256.
	NumEndpoints int
}

// Transport reaches processes of this host, and user, by memory that both have
// mapped.
type Transport struct {
	config      Config
	name        nonce // of the listener
	table       *table
	rings       *shared // the memory of bell
	bell        bell
	connManager *connManager

	woken      atomic.Bool
	runnable   bitmap // endpoints that have work left
	finished   bitmap // endpoints that have completions
	failed     bitmap // endpoints that have failed by themselves
	numRegions atomic.Int64
	nextRun    uint32 // the slot where Poll begins to run requests,
	nextDone   uint32 // and to take completions: after those that had their turn

	isClosed    atomic.Bool
	lifecycleMu sync.RWMutex // held while the shared memory is in use; for writing by Close
	mu          sync.Mutex
	slots       [MaxEndpoints]atomic.Pointer[Endpoint]
	numSlots    int
	lastID      transport.EndpointID
}

// Open makes a transport, with one goroutine. The caller closes it.
func Open(config Config) (*Transport, error) {
	if config.NumEndpoints == 0 {
		config.NumEndpoints = 256
	}
	if config.NumEndpoints < 1 || config.NumEndpoints > MaxEndpoints {
		return nil, fmt.Errorf("open: NumEndpoints is %d, 1 to %d are allowed", config.NumEndpoints, MaxEndpoints)
	}
	t := &Transport{config: config}
	rand.Read(t.name[:]) // never fails
	err := t.open()
	if err != nil {
		t.free()
		return nil, fmt.Errorf("open: %w", err)
	}
	return t, nil
}

func (t *Transport) open() (err error) {
	if t.rings, err = newShared("moewire-bell", bellBytes); err != nil {
		return err
	}
	t.bell = newBell(t.rings.Bytes())
	if t.table, err = newTable(); err != nil {
		return err
	}
	t.connManager, err = newConnManager(t)
	return err
}

// free ends what Open has made; the connection manager first.
func (t *Transport) free() {
	t.connManager.close()
	if t.table != nil {
		_ = t.table.shared.close()
	}
	_ = t.rings.close()
}

// Name is "shm".
func (t *Transport) Name() string { return "shm" }

// Device is the host's memory.
func (t *Transport) Device() string { return "memory" }

// Limits are the constants of this package, but for NumEndpoints.
func (t *Transport) Limits() transport.Limits {
	return transport.Limits{
		NumEndpoints: t.config.NumEndpoints, SendDepth: MaxDepth, RecvDepth: MaxDepth,
		NumPieces: MaxPieces, InlineBytes: MaxInlineBytes, MaxRequestBytes: MaxRequestBytes,
	}
}

// Register makes a part of a Memory usable, and refuses other memory: peers
// can map no other. ErrNoResource at MaxMemories and MaxRegions.
func (t *Transport) Register(mem []byte, access transport.Access) (transport.Region, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("register: mem has 0 bytes, at least 1 is needed")
	}
	if access&^(transport.AccessRead|transport.AccessWrite) != 0 {
		return nil, fmt.Errorf("register: access is %#x, bits 0 and 1 are allowed", access)
	}
	if !t.countRegion() {
		return nil, transport.ErrClosed
	}
	r, err := newRegion(t, mem, access)
	if err != nil {
		t.numRegions.Add(-1)
		return nil, err
	}
	return r, nil
}

// countRegion counts one more, if the transport is not closed.
func (t *Transport) countRegion() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isClosed.Load() {
		return false
	}
	t.numRegions.Add(1)
	return true
}

// NewEndpoint makes an endpoint.
func (t *Transport) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	if spec.SendDepth < 1 || spec.SendDepth > MaxDepth {
		return nil, fmt.Errorf("new endpoint: SendDepth is %d, 1 to %d are allowed", spec.SendDepth, MaxDepth)
	}
	if spec.RecvDepth < 1 || spec.RecvDepth > MaxDepth {
		return nil, fmt.Errorf("new endpoint: RecvDepth is %d, 1 to %d are allowed", spec.RecvDepth, MaxDepth)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isClosed.Load() {
		return nil, transport.ErrClosed
	}
	if t.numSlots >= t.config.NumEndpoints {
		return nil, fmt.Errorf("%d endpoints: %w", t.numSlots, transport.ErrWouldBlock)
	}
	slot := uint32(0)
	for t.slots[slot].Load() != nil {
		slot++
	}
	e, err := newEndpoint(t, slot, spec)
	if err != nil {
		return nil, err
	}
	t.lastID++
	e.id = t.lastID
	t.numSlots++
	t.slots[slot].Store(e)
	return e, nil
}

// forget takes a closed endpoint out.
func (t *Transport) forget(e *Endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots[e.slot].Store(nil)
	t.runnable.clear(e.slot)
	t.finished.clear(e.slot)
	t.failed.clear(e.slot)
	t.numSlots--
}

// Poll runs requests, up to pollBytes, and takes completions.
func (t *Transport) Poll(done []transport.Completion) (int, error) {
	t.lifecycleMu.RLock()
	defer t.lifecycleMu.RUnlock()
	if t.isClosed.Load() {
		return 0, transport.ErrClosed
	}
	t.runAll()
	n := 0
	for k, first := 0, t.nextDone; k <= numNewsWords; k++ {
		word, part := turn(first, k)
		for which := t.finished[word].Load() & part; which != 0 && n < len(done); {
			slot := uint32(64*word) + lowest(&which)
			if e := t.slots[slot].Load(); e != nil {
				n += e.collect(done[n:])
			}
			t.nextDone = (slot + 1) % MaxEndpoints
		}
	}
	return n, nil
}

// turn goes through the words of a bitmap from a slot on and round to it again:
// the k-th word, and which part of it. The first one comes again as the last.
func turn(first uint32, k int) (word int, part uint64) {
	word, part = (int(first/64)+k)%numNewsWords, ^uint64(0)
	switch k {
	case 0:
		part <<= first % 64
	case numNewsWords:
		part = ^(part << (first % 64))
	}
	return word, part
}

// runAll runs the endpoints that have news, or work left.
func (t *Transport) runAll() {
	left := pollBytes
	for k, first := 0, t.nextRun; k <= numNewsWords; k++ {
		word, part := turn(first, k)
		if (t.bell.news[word].Load()|t.runnable[word].Load())&part == 0 {
			continue
		}
		for which := (t.bell.news[word].And(^part) | t.runnable[word].And(^part)) & part; which != 0; {
			slot := uint32(64*word) + lowest(&which)
			e := t.slots[slot].Load()
			switch {
			case e == nil:
			case left <= 0:
				t.runnable.set(slot)
			default:
				left -= e.progress(left)
				t.nextRun = (slot + 1) % MaxEndpoints
			}
		}
	}
}

// Wait blocks until there may be something to poll.
func (t *Transport) Wait(d time.Duration) error {
	t.lifecycleMu.RLock()
	defer t.lifecycleMu.RUnlock()
	for end := time.Now().Add(d); !t.hasSomething(); {
		left := time.Until(end)
		if left <= 0 {
			break
		}
		if err := t.bell.sleep(left, t.hasSomething); err != nil {
			return err
		}
	}
	t.woken.Store(false)
	if t.isClosed.Load() {
		return transport.ErrClosed
	}
	return nil
}

func (t *Transport) hasSomething() bool {
	return t.woken.Load() || t.isClosed.Load() || t.finished.any() || t.failed.any() || t.runnable.any() || t.bell.hasNews()
}

// Wake ends a Wait.
func (t *Transport) Wake() {
	t.lifecycleMu.RLock()
	defer t.lifecycleMu.RUnlock()
	if t.isClosed.Load() {
		return
	}
	t.woken.Store(true)
	t.bell.wake()
}

// PollEvents tells of endpoints that have failed by themselves.
func (t *Transport) PollEvents(events []transport.Event) int {
	n := 0
	for word := range numNewsWords {
		for which := t.failed[word].Load(); which != 0 && n < len(events); {
			if e := t.slots[64*word+int(lowest(&which))].Load(); e != nil && e.takeFailure(&events[n]) {
				n++
			}
		}
	}
	return n
}

// takeFailure takes the report of a failure, once. False if there is none: the
// slot may have another endpoint by now.
func (e *Endpoint) takeFailure(ev *transport.Event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.t.failed.clear(e.slot)
	if e.failure == "" {
		return false
	}
	*ev = transport.Event{Kind: transport.EventEndpointFailed, Endpoint: e.id, Detail: e.failure}
	e.failure = ""
	return true
}

// isTouched tells whether a peer is in the middle of a copy that is about a
// region.
func (t *Transport) isTouched(key uint64) bool {
	touched := false
	t.all(func(e *Endpoint) {
		e.mu.Lock()
		defer e.mu.Unlock()
		touched = touched || e.peerTouches() && e.peer.touching.Load() == key
	})
	return touched
}

// ringAll tells all peers to look at the table.
func (t *Transport) ringAll() {
	t.all(func(e *Endpoint) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ringPeer()
	})
}

func (t *Transport) all(f func(*Endpoint)) {
	for slot := range t.slots {
		if e := t.slots[slot].Load(); e != nil {
			f(e)
		}
	}
}

// Close stops the goroutine and releases the shared memory.
func (t *Transport) Close() error {
	t.mu.Lock()
	if t.isClosed.Load() {
		t.mu.Unlock()
		return nil
	}
	if held := int64(t.numSlots) + t.numRegions.Load(); held > 0 {
		t.mu.Unlock()
		return fmt.Errorf("close with %d endpoints and regions: %w", held, transport.ErrBusy)
	}
	t.isClosed.Store(true)
	t.mu.Unlock()
	t.bell.wake()
	t.lifecycleMu.Lock() // waits for Wait and Poll
	defer t.lifecycleMu.Unlock()
	t.free()
	return nil
}
