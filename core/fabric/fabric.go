package fabric

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	uatomic "go.uber.org/atomic"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// Fabric is one carrier and its peers. Safe for concurrent use.
type Fabric struct {
	cfg    Config
	store  *endpoint.Store
	table  *op.Table
	work   []work // one per slot of the table
	header header // of messages; nil otherwise

	mu       sync.RWMutex // guards the maps
	peers    peers
	conns    map[uint32]*conn // that may have empty receives posted
	regions  map[RegionID]transport.Region
	lastConn uint32
	lastID   RegionID

	handshakes handshakes
	notary     *wire.Notary // signs and checks handshakes; nil: they are not signed
	id         handshakeID

	// outstanding is how many slices the carrier has, or is about to be given.
	outstanding atomic.Int64
	drained     chan struct{} // has something when outstanding came to 0 while closing
	refill      atomic.Bool   // a window may be smaller than it can be

	closing atomic.Bool
	broken  uatomic.Error
	poller  poller
	closeMu sync.Mutex // of Close; never held by others
	closed  bool

	strays atomic.Uint64
}

// Open makes a fabric over a carrier that has no other user.
func Open(cfg Config) (*Fabric, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("fabric: %w", err)
	}
	f := &Fabric{
		cfg: cfg, work: make([]work, cfg.NumTransfers),
		peers: peers{byID: map[endpoint.Peer]*peer{}}, conns: map[uint32]*conn{}, regions: map[RegionID]transport.Region{},
		handshakes: newHandshakes(cfg.NumPeers), drained: make(chan struct{}, 1),
	}
	var err error
	if f.table, err = op.NewTable(cfg.NumTransfers); err != nil {
		return nil, err
	}
	_, _ = rand.Read(f.id[:]) // never fails
	if cfg.Keys != nil {
		if f.notary, err = wire.NewNotary(wire.Config{Keys: cfg.Keys, Counters: cfg.Counters}); err != nil {
			return nil, fmt.Errorf("fabric: %w", err)
		}
	}
	if err = f.header.open(&cfg); err != nil {
		return nil, fmt.Errorf("fabric: %w", err)
	}
	if f.store, err = endpoint.Open(cfg.store(f)); err != nil {
		_ = f.header.close()
		return nil, fmt.Errorf("fabric: %w", err)
	}
	f.store.Start(tickEvery)
	f.poller.start(f)
	return f, nil
}

// tickEvery is how often connections are looked after: handshakes said again,
// attempts given up.
const tickEvery = 10 * time.Millisecond

// Name is the carrier's, Device says which NIC or interface.
func (f *Fabric) Name() string { return f.cfg.Transport.Name() }

// Device says which NIC or interface the carrier uses, for people.
func (f *Fabric) Device() string { return f.cfg.Transport.Device() }

// Config is the configuration, with its defaults.
func (f *Fabric) Config() Config { return f.cfg }

// Abandon ends every operation, because of a defect. Close is still needed.
func (f *Fabric) Abandon(err error) { f.breakDown(err) }

// Mode says what receives are for.
func (f *Fabric) Mode() Mode { return f.cfg.Mode }

// Stats counts.
type Stats struct {
	Transfers   op.TableStats
	Connections endpoint.Stats
	NumRegions  int
	NumPeers    int
	// Outstanding is how many slices, and receives with memory, the carrier has.
	Outstanding int64
	// Strays are arrivals that no receive was meant for.
	Strays uint64
}

// Stats returns the counts of this moment.
func (f *Fabric) Stats() Stats {
	f.mu.RLock()
	regions, peers := len(f.regions), len(f.peers.order)
	f.mu.RUnlock()
	return Stats{
		Transfers: f.table.Stats(), Connections: f.store.Stats(), NumRegions: regions, NumPeers: peers,
		Outstanding: f.outstanding.Load(), Strays: f.strays.Load(),
	}
}

// refusal is why no operation can begin.
func (f *Fabric) refusal() error {
	if err := f.broken.Load(); err != nil {
		return err
	}
	if f.closing.Load() {
		return ErrClosed
	}
	return nil
}

// breakDown ends everything, because the carrier, or the poller, is out of
// order.
func (f *Fabric) breakDown(err error) {
	err = fmt.Errorf("%w: %w", ErrClosed, err)
	f.broken.CompareAndSwap(nil, err)
	f.table.Close(err)
	f.dismiss(err)
	f.handshakes.wake()
}

// Close ends every operation with ErrClosed and takes the connections, the
// regions and the carrier down. When it has returned nil there is no goroutine
// and no descriptor left, and all memory is the caller's. Else something was
// still outstanding at the deadline: operations have ended, memory is not free, and
// Close may be called again. Idempotent.
func (f *Fabric) Close(deadline time.Time) error {
	f.closeMu.Lock()
	defer f.closeMu.Unlock()
	if f.closed {
		return nil
	}
	f.closing.Store(true)
	f.table.Close(ErrClosed)
	f.dismiss(ErrClosed)
	f.handshakes.wake()
	f.retireAll()
	if !f.drain(deadline) {
		return fmt.Errorf("fabric: %d requests await a completion: %w", f.outstanding.Load(), transport.ErrBusy)
	}
	f.poller.stop(f)
	if err := f.store.Close(deadline); err != nil {
		return fmt.Errorf("fabric: %w: %w", transport.ErrBusy, err)
	}
	return f.closeRest(deadline)
}

func (f *Fabric) closeRest(deadline time.Time) error {
	if err := f.closeRegions(deadline); err != nil {
		return err
	}
	if err := f.header.close(); err != nil {
		return fmt.Errorf("fabric: %w", err)
	}
	if err := f.cfg.Transport.Close(); err != nil {
		return fmt.Errorf("fabric: %w", err)
	}
	if f.broken.Load() != nil {
		f.releaseAll()
	}
	f.closed = true
	return nil
}

// drain waits until the carrier has nothing of any transfer's.
func (f *Fabric) drain(deadline time.Time) bool {
	if f.broken.Load() != nil {
		return true // no goroutine polls: the store does, without transfers
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for f.outstanding.Load() > 0 {
		select {
		case <-f.drained:
		case <-timer.C:
			return f.outstanding.Load() == 0
		}
	}
	return true
}

// settle counts slices that the carrier has no longer.
func (f *Fabric) settle(n int64) {
	if f.outstanding.Add(-n) == 0 && f.closing.Load() {
		select {
		case f.drained <- struct{}{}:
		default:
		}
	}
}

// headerBytes precede every message: its number, little-endian.
const headerBytes = 8

func putNumber(b []byte, n uint64) { binary.LittleEndian.PutUint64(b, n) }
func number(b []byte) uint64       { return binary.LittleEndian.Uint64(b) }
