package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/moewire/moewire/core/internal/gmac"
)

const (
	chunkTagBytes = 16 // of AES-GCM
	nonceBytes    = 12
)

// chunkNonce is different for every chunk of every payload of one direction,
// which has a key of its own, so that no nonce is used twice.
type chunkNonce [nonceBytes]byte

func (n *chunkNonce) set(seq uint64, chunk uint32) []byte {
	binary.LittleEndian.PutUint64(n[:], seq)
	binary.LittleEndian.PutUint32(n[8:], chunk)
	return n[:]
}

// Digest checks one payload at a time as its bytes arrive, wherever they lie.
// It is for one goroutine at a time, reusable, and allocates nothing.
//
// Every ChunkBytes of the payload get an AES-256-GMAC tag under the direction's own key.
// The nonce is the message's sequence number and the chunk's index. The header holds the
// SHA-256 of the tags. Tags of chunks cannot just be added up: GMAC is linear, so that
// equal changes in two chunks would cancel each other out.
type Digest struct {
	counters *Counters
	mac      *gmac.MAC
	tags     hash.Hash
	want     [tagBytes]byte
	seq      uint64
	total    int64 // of what is covered of the payload
	given    int64
	chunk    uint32
	fill     int

	nonce chunkNonce
	tag   [chunkTagBytes]byte
	sum   [tagBytes]byte
	buf   [ChunkBytes]byte // a chunk of which the pieces come one by one
}

// NewDigest makes a Digest for payloads that this side receives. One per
// goroutine that receives is enough.
func (s *Session) NewDigest() *Digest { return newDigest(s.inDigest, s.counters) }

func newDigest(mac *gmac.MAC, counters *Counters) *Digest {
	return &Digest{mac: mac.Clone(), counters: counters, tags: sha256.New()}
}

// Begin prepares for the payload of a head that OpenHead has returned.
func (d *Digest) Begin(head *Head) {
	d.begin(head.Seq, head.PayloadBytes-int64(head.ApartBytes))
	d.want = head.digest
}

func (d *Digest) begin(seq uint64, total int64) {
	d.seq, d.total, d.given, d.chunk, d.fill = seq, total, 0, 0, 0
	d.tags.Reset()
}

// Write takes the next bytes of the payload. It does not keep them.
func (d *Digest) Write(p []byte) {
	d.given += int64(len(p))
	for len(p) > 0 {
		switch {
		case d.fill == 0 && len(p) >= ChunkBytes:
			d.add(p[:ChunkBytes])
			p = p[ChunkBytes:]
		case d.fill == 0 && d.given == d.total:
			d.add(p)
			return
		default:
			p = p[d.keep(p):]
		}
	}
}

// keep copies what belongs to a chunk that is not complete in memory.
func (d *Digest) keep(p []byte) int {
	n := copy(d.buf[d.fill:], p)
	d.fill += n
	if d.fill == ChunkBytes {
		d.flush()
	}
	return n
}

func (d *Digest) flush() {
	if d.fill > 0 {
		d.add(d.buf[:d.fill])
		d.fill = 0
	}
}

func (d *Digest) add(chunk []byte) {
	d.nonce.set(d.seq, d.chunk)
	d.mac.Tag(&d.tag, (*[nonceBytes]byte)(&d.nonce), chunk)
	d.tags.Write(d.tag[:])
	d.chunk++
}

// finish gives the digest of what was written: zeros for an empty payload.
func (d *Digest) finish() *[tagBytes]byte {
	d.flush()
	if d.given == 0 {
		d.sum = [tagBytes]byte{}
	} else {
		d.tags.Sum(d.sum[:0])
	}
	return &d.sum
}

// Check says whether the bytes written are all that the header's digest covers:
// nil, or ErrPayload. On ErrPayload the destination holds bytes that must not be used,
// and the connection should be closed.
func (d *Digest) Check() error {
	same := hmac.Equal(d.finish()[:], d.want[:])
	if !same || d.given != d.total {
		return d.counters.refuse(ErrPayload)
	}
	return nil
}

// of is the digest of the first bytes of a payload that is there as a whole.
func (d *Digest) of(seq uint64, total int64, payload [][]byte) [tagBytes]byte {
	d.begin(seq, total)
	for _, p := range payload {
		n := min(total, int64(len(p)))
		d.Write(p[:n])
		total -= n
	}
	return *d.finish()
}
