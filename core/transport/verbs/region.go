package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// region is registered memory: one memory region of the device, or several in
// a row where it bounds their length.
type region struct {
	owner      *Transport
	mem        []byte // nil: a device's
	sizeBytes  int
	device     bool // the memory is a device's
	addr       uint64
	chunkBytes uint64
	lkeys      []uint32
	rkey       uint32

	pins atomic.Int64 // work requests that name it; closedPins after Close

	mu  sync.Mutex
	mrs []libibverbs.MR // not deregistered yet
	// counted means that the transport counts it as open.
	counted bool
}

// closedPins is so low that no number of pins makes it positive.
const closedPins = -1 << 62

// Register makes memory usable. mem must not be Go heap memory. Registration
// locks its pages: ErrNoResource says how many the process may lock. Memory
// above the device's bound for one registration is for local use only.
func (t *Transport) Register(mem []byte, access transport.Access) (transport.Region, error) {
	r, err := t.register(mem, access)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (t *Transport) register(mem []byte, access transport.Access) (*region, error) {
	if len(mem) == 0 {
		return nil, errors.New("register: mem is empty")
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	limit := t.maxRegionBytes
	if access != 0 && uint64(len(mem)) > limit {
		return nil, fmt.Errorf("register %d bytes for peers on %s: at most %d in one region: %w",
			len(mem), t.device, limit, transport.ErrNotSupported)
	}
	if err := t.enter(); err != nil {
		return nil, err
	}
	defer t.leave()
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	r := &region{owner: t, mem: mem, sizeBytes: len(mem), addr: uint64(addr), chunkBytes: limit}
	for off := uint64(0); off < uint64(len(mem)); off += limit {
		n := min(limit, uint64(len(mem))-off)
		mr, err := t.lib.RegMR(t.pd, addr+uintptr(off), n, t.accessFlags(access))
		if err != nil {
			return nil, errors.Join(t.registerError(len(mem), err), r.deregister())
		}
		r.adopt(mr)
	}
	r.opened()
	return r, nil
}

func checkAccess(access transport.Access) error {
	if access&^(transport.AccessWrite|transport.AccessRead) != 0 {
		return fmt.Errorf("register: access is %#x, must be of AccessWrite and AccessRead", access)
	}
	return nil
}

// adopt adds the next registration.
func (r *region) adopt(mr libibverbs.MR) {
	r.mrs = append(r.mrs, mr)
	r.lkeys = append(r.lkeys, mr.Body().LKey)
}

// opened counts the region, which is whole.
func (r *region) opened() {
	r.rkey = r.mrs[0].Body().RKey
	r.counted = true
	r.owner.numRegions.Add(1)
}

func (t *Transport) accessFlags(access transport.Access) uint32 {
	flags := uint32(libibverbs.AccessLocalWrite)
	if access&transport.AccessWrite != 0 {
		flags |= libibverbs.AccessRemoteWrite
	}
	if access&transport.AccessRead != 0 {
		flags |= libibverbs.AccessRemoteRead
	}
	// Nothing here infers an order of bytes from an order of addresses.
	if t.lib.HasIova2() {
		flags |= libibverbs.AccessRelaxedOrdering
	}
	return flags
}

func (t *Transport) registerError(n int, err error) error {
	if !isShortage(err) {
		return fmt.Errorf("register %d bytes on %s: %w", n, t.device, err)
	}
	advice := "the device or the kernel has no room for more"
	if limit, limitErr := sys.MemlockLimitBytes(); limitErr == nil && limit < 1<<62 {
		advice = fmt.Sprintf("this process may lock %d bytes: raise RLIMIT_MEMLOCK (ulimit -l)", limit)
	}
	return fmt.Errorf("register %d bytes on %s: %w: %w; %s", n, t.device, transport.ErrNoResource, err, advice)
}

// isShortage reports whether a call failed for want of something that may come
// free again.
func isShortage(err error) bool {
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOSPC)
}

// Bytes is the memory; nil if it is a device's.
func (r *region) Bytes() []byte { return r.mem }

// Remote is what a peer needs; of a region that is not for peers, nothing that
// works.
func (r *region) Remote() transport.RemoteRegion {
	key := uint64(r.owner.member)<<32 | uint64(r.rkey)
	return transport.RemoteRegion{Addr: r.addr, SizeBytes: uint64(r.sizeBytes), Key: key}
}

// own is the registration of a region with this port; nil if there is none.
func (t *Transport) own(r transport.Region) *region {
	one, ok := r.(*region)
	if of, isGroup := r.(*groupRegion); isGroup {
		one, ok = of.on[t.member].Load(), true
	}
	if !ok || one == nil || one.owner != t {
		return nil
	}
	return one
}

// pin keeps the region open; false if it is closed.
func (r *region) pin() bool {
	if r.pins.Add(1) > 0 {
		return true
	}
	r.pins.Add(-1)
	return false
}

func (r *region) unpin() { r.pins.Add(-1) }

// Close ends the registration.
func (r *region) Close() error {
	if !r.seal() {
		return fmt.Errorf("close region: %w", transport.ErrBusy)
	}
	return r.deregister()
}

// seal makes it impossible to pin the region; false if it is pinned. A pin that ends
// between two looks must not be taken for a region that is sealed.
func (r *region) seal() bool {
	for !r.pins.CompareAndSwap(0, closedPins) {
		if n := r.pins.Load(); n != 0 {
			return n < 0
		}
	}
	return true
}

// unseal takes back what seal did.
func (r *region) unseal() { r.pins.Add(-closedPins) }

// deregister ends what is left of the registration. Idempotent; a failure may
// be tried again.
func (r *region) deregister() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.mrs) > 0 {
		last := len(r.mrs) - 1
		if err := r.owner.gone(r.owner.lib.DeregMR(r.mrs[last])); err != nil {
			return err
		}
		r.mrs = r.mrs[:last]
	}
	if r.counted {
		r.counted = false
		r.owner.numRegions.Add(-1)
	}
	return nil
}
