package tcp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/transport"
)

// region is registered memory.
type region struct {
	t      *Transport
	mem    []byte
	access transport.Access
	key    uint64       // index in the table | random << 32
	users  atomic.Int64 // work requests of this side that name it

	// mu is held for reading while a peer's bytes go in or out, and for writing by Close:
	// after it nothing touches the memory.
	mu     sync.RWMutex
	closed bool
}

// Register makes memory usable. It may be Go heap memory. If peers or this process access
// the same bytes at the same time, the result is undefined. Bytes that change while their
// digest is computed end the endpoint, because that looks like damage on the way.
func (t *Transport) Register(mem []byte, access transport.Access) (transport.Region, error) {
	if access&^(transport.AccessWrite|transport.AccessRead) != 0 {
		return nil, fmt.Errorf("tcp: access is %#x, allowed are AccessWrite and AccessRead", access)
	}
	if len(mem) == 0 {
		return nil, fmt.Errorf("tcp: memory to register has no bytes")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("tcp: transport is closed: %w", transport.ErrState)
	}
	if len(t.freeRegions) == 0 {
		return nil, fmt.Errorf("tcp: Config.NumRegions is %d: %w", t.config.NumRegions, transport.ErrNoResource)
	}
	i := t.freeRegions[len(t.freeRegions)-1]
	t.freeRegions = t.freeRegions[:len(t.freeRegions)-1]
	r := &region{t: t, mem: mem, access: access, key: uint64(i) | uint64(random32())<<32}
	t.regions[i].Store(r)
	return r, nil
}

func random32() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails, says crypto/rand
	return binary.LittleEndian.Uint32(b[:])
}

// Bytes is the memory.
func (r *region) Bytes() []byte { return r.mem }

// Remote is what a peer needs. Addr is 0: offsets count from the beginning.
func (r *region) Remote() transport.RemoteRegion {
	return transport.RemoteRegion{SizeBytes: uint64(len(r.mem)), Key: r.key}
}

// Close ends the registration.
func (r *region) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	if n := r.users.Load(); n != 0 {
		r.mu.Unlock()
		return fmt.Errorf("tcp: %d work requests name the region: %w", n, transport.ErrBusy)
	}
	r.closed = true
	r.mu.Unlock()

	i := uint32(r.key)
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.t.regions[i].Store(nil)
	r.t.freeRegions = append(r.t.freeRegions, i)
	return nil
}

// target finds n bytes at off of the region with a key, for a peer that wants
// access; nil if it may not have them.
func (t *Transport) target(key, off, n uint64, access transport.Access) *region {
	i := uint32(key)
	if int(i) >= len(t.regions) {
		return nil
	}
	r := t.regions[i].Load()
	if r == nil || r.key != key || r.access&access == 0 {
		return nil
	}
	if size := uint64(len(r.mem)); off > size || n > size-off {
		return nil
	}
	return r
}

// use counts a work request that names the region; false if it is closed.
func (r *region) use() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return false
	}
	r.users.Add(1)
	return true
}

// piecesOf checks the pieces of a work request and copies them to dst; each piece counts
// as one more user of its region. It returns how many there are and how many bytes they
// have.
func (t *Transport) piecesOf(dst *[numPieces]transport.Piece, src []transport.Piece) (n int, total int64, err error) {
	if len(src) > numPieces {
		return 0, 0, fmt.Errorf("tcp: %d pieces, at most %d are allowed", len(src), numPieces)
	}
	for i, p := range src {
		if err := t.checkPiece(i, p); err != nil {
			release(dst[:i])
			return 0, 0, err
		}
		dst[i] = p
		total += int64(p.Bytes)
	}
	if total > maxRequestBytes {
		release(dst[:len(src)])
		return 0, 0, fmt.Errorf("tcp: request of %d bytes, at most %d are allowed", total, maxRequestBytes)
	}
	return len(src), total, nil
}

func (t *Transport) checkPiece(i int, p transport.Piece) error {
	r, ok := p.Region.(*region)
	switch {
	case !ok || r == nil || r.t != t:
		return fmt.Errorf("tcp: Local[%d].Region is not a region of this transport", i)
	case p.Off < 0 || p.Bytes < 0 || p.Off > len(r.mem) || p.Bytes > len(r.mem)-p.Off:
		return fmt.Errorf("tcp: Local[%d] is %d bytes at %d of a region of %d bytes", i, p.Bytes, p.Off, len(r.mem))
	case !r.use():
		return fmt.Errorf("tcp: Local[%d].Region is closed", i)
	}
	return nil
}

// release takes back what piecesOf has counted.
func release(pieces []transport.Piece) {
	for i := range pieces {
		pieces[i].Region.(*region).users.Add(-1)
		pieces[i] = transport.Piece{}
	}
}

// slicesOf appends the memory of n bytes at off of a list of pieces to dst, which
// has room for numPieces: a slice for each piece that has some of them.
func slicesOf(dst [][]byte, pieces []transport.Piece, off, n int) [][]byte {
	for _, p := range pieces {
		if n == 0 {
			break
		}
		if off >= p.Bytes {
			off -= p.Bytes
			continue
		}
		take := min(n, p.Bytes-off)
		dst = append(dst, p.Region.Bytes()[p.Off+off:][:take])
		off, n = 0, n-take
	}
	return dst
}
