package fabric

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// RegionID names a region. 0 names none; it is never used twice.
type RegionID uint64

// Register makes memory usable in operations and, by access, for peers. The
// caller keeps it alive until CloseRegion, or Close, has returned nil.
func (f *Fabric) Register(mem []byte, access transport.Access) (RegionID, error) {
	if len(mem) == 0 {
		return 0, invalid("memory to register has 0 bytes, at least 1 is needed")
	}
	if access > transport.AccessWrite|transport.AccessRead {
		return 0, invalid("access is %#x, allowed are bits 1 (write) and 2 (read)", access)
	}
	f.mu.Lock()
	if err := f.refusal(); err != nil { // with the lock: Close finds those that have passed
		f.mu.Unlock()
		return 0, err
	}
	if len(f.regions) >= f.cfg.NumRegions {
		f.mu.Unlock()
		return 0, fmt.Errorf("%w: %d regions, at most %d", transport.ErrWouldBlock, f.cfg.NumRegions, f.cfg.NumRegions)
	}
	f.lastID++
	id := f.lastID
	f.regions[id] = nil // takes its place before it is made
	f.mu.Unlock()
	r, err := f.cfg.Transport.Register(mem, access)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		delete(f.regions, id)
		return 0, err
	}
	f.regions[id] = r // Close waits for it
	return id, nil
}

// closeRegions closes all that are left, once those that are being made are.
func (f *Fabric) closeRegions(deadline time.Time) error {
	for {
		id, r := f.anyRegion()
		switch {
		case id == 0:
			return nil
		case r != nil:
			if err := f.CloseRegion(id); err != nil && !errors.Is(err, ErrRegion) {
				return fmt.Errorf("fabric: region %d: %w", id, err)
			}
		case !time.Now().Before(deadline):
			return fmt.Errorf("fabric: region %d is being registered: %w", id, transport.ErrBusy)
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

func (f *Fabric) anyRegion() (RegionID, transport.Region) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for id, r := range f.regions {
		return id, r
	}
	return 0, nil
}

// region finds a region. nil for 0.
func (f *Fabric) region(id RegionID) (transport.Region, error) {
	if id == 0 {
		return nil, nil
	}
	f.mu.RLock()
	r := f.regions[id]
	f.mu.RUnlock()
	if r == nil {
		return nil, fmt.Errorf("%w: %d", ErrRegion, id)
	}
	return r, nil
}

// Remote is what a peer needs to reach a region.
func (f *Fabric) Remote(id RegionID) (transport.RemoteRegion, error) {
	r, err := f.region(id)
	if err != nil {
		return transport.RemoteRegion{}, err
	}
	if r == nil {
		return transport.RemoteRegion{}, fmt.Errorf("%w: 0", ErrRegion)
	}
	return r.Remote(), nil
}

// CloseRegion ends a registration: what peers try with it afterwards is
// refused. transport.ErrBusy while operations that name it are not released.
func (f *Fabric) CloseRegion(id RegionID) error {
	r, err := f.region(id)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%w: 0", ErrRegion)
	}
	if err := r.Close(); err != nil {
		return err
	}
	f.mu.Lock()
	delete(f.regions, id)
	f.mu.Unlock()
	return nil
}

// header is the memory that messages' numbers are sent from and received in:
// one place per transfer. It is not of the Go heap, as carriers want it.
type header struct {
	mapping *sys.Mapping
	region  transport.Region
}

func (h *header) open(cfg *Config) error {
	if cfg.Mode != Messages {
		return nil
	}
	size := int64(cfg.NumTransfers) * headerBytes
	fd, err := sys.NewMemfd("moewire-fabric")
	if err != nil {
		return err
	}
	defer fd.Close()
	if err := sys.Grow(fd, size); err != nil {
		return err
	}
	if h.mapping, err = sys.Map(fd, 0, size); err != nil {
		return err
	}
	if h.region, err = cfg.Transport.Register(h.mapping.Bytes(), 0); err != nil {
		return errors.Join(err, h.mapping.Unmap())
	}
	return nil
}

func (h *header) at(slot int) []byte {
	return h.mapping.Bytes()[slot*headerBytes:][:headerBytes]
}

func (h *header) piece(slot int) transport.Piece {
	return transport.Piece{Region: h.region, Off: slot * headerBytes, Bytes: headerBytes}
}

func (h *header) close() error {
	if h.region == nil {
		return nil
	}
	if err := h.region.Close(); err != nil {
		return err
	}
	return h.mapping.Unmap()
}
