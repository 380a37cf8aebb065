package wire

import "crypto/cipher"

// EncryptedBytes is what n bytes of payload become under ProtectEncrypt: each
// ChunkBytes, and what is left at the end, get a tag of 16 bytes.
func EncryptedBytes(n int64) int64 {
	return n + (n+ChunkBytes-1)/ChunkBytes*chunkTagBytes
}

// EncryptedChunkBytes is the length of a whole chunk under ProtectEncrypt: the
// least room that Encryptor.Next wants.
const EncryptedChunkBytes = ChunkBytes + chunkTagBytes

// Encryptor makes the bytes that follow a frame under ProtectEncrypt, a few
// chunks at a time, so that a payload of any length needs bounded memory. It
// is for one goroutine at a time, reusable, and allocates nothing. After the
// last chunk, or the next Begin, it holds on to no memory of the caller.
type Encryptor struct {
	aead  cipher.AEAD
	seq   uint64
	chunk uint32
	left  int64 // of the payload
	src   pieces
	nonce chunkNonce
	buf   [ChunkBytes]byte // a chunk of which the pieces lie apart
}

// NewEncryptor makes an Encryptor for payloads that this side sends.
func (s *Session) NewEncryptor() *Encryptor { return &Encryptor{aead: s.outPayload} }

// Begin takes a head that Seal has filled in, and the pieces that Seal was
// given. They must not change until everything has been made. A payload must
// not be encrypted twice with different contents.
func (e *Encryptor) Begin(head *Head, payload [][]byte) {
	e.seq, e.chunk, e.left = head.Seq, 0, head.PayloadBytes
	e.src.set(payload)
}

// Next appends as many whole chunks as dst has capacity for and returns dst.
// It never makes dst grow; with room for less than EncryptedChunkBytes it may
// append nothing.
func (e *Encryptor) Next(dst []byte) []byte {
	for e.left > 0 {
		n := int(min(e.left, ChunkBytes))
		if cap(dst)-len(dst) < n+chunkTagBytes {
			return dst
		}
		chunk := e.src.take(n, e.buf[:])
		dst = e.aead.Seal(dst, e.nonce.set(e.seq, e.chunk), chunk, nil)
		e.chunk++
		e.left -= int64(n)
	}
	e.src.set(nil)
	return dst
}

// Decryptor is what a Digest is, for ProtectEncrypt: it takes the bytes that
// follow a frame as they arrive and puts the payload where it belongs, chunk by
// chunk and only what is genuine. It is for one goroutine at a time, reusable,
// and allocates nothing.
type Decryptor struct {
	counters *Counters
	aead     cipher.AEAD
	seq      uint64
	chunk    uint32
	left     int64 // of the payload
	failed   bool
	apart    bool // the place is told by and by
	room     int64
	dst      pieces
	fill     int
	nonce    chunkNonce
	buf      [EncryptedChunkBytes]byte // a chunk that has not arrived as a whole
}

// NewDecryptor makes a Decryptor for payloads that this side receives.
func (s *Session) NewDecryptor() *Decryptor {
	return &Decryptor{aead: s.inPayload, counters: s.counters}
}

// Begin prepares for the payload of a head that OpenHead has returned, and says
// where it goes. ErrLength, and nothing changes, if dst has less room.
func (d *Decryptor) Begin(head *Head, dst [][]byte) error {
	room := int64(0)
	for _, p := range dst {
		room += int64(len(p))
	}
	if room < head.PayloadBytes {
		return ErrLength
	}
	d.begin(head)
	d.dst.set(dst)
	return nil
}

// BeginApart is Begin where the place depends on the payload itself. Into says it, before
// the bytes are written that belong there.
func (d *Decryptor) BeginApart(head *Head) {
	d.begin(head)
	d.dst.set(nil)
	d.apart, d.room = true, 0
}

// Into says where the chunks go that are written next, after BeginApart. They must fit.
func (d *Decryptor) Into(dst [][]byte) {
	d.room = 0
	for _, p := range dst {
		d.room += int64(len(p))
	}
	d.dst.set(dst)
}

func (d *Decryptor) begin(head *Head) {
	d.seq, d.chunk, d.left, d.fill, d.failed, d.apart = head.Seq, 0, head.PayloadBytes, 0, false, false
}

// Write takes the next bytes that have arrived. ErrPayload as soon as a chunk is not
// genuine, or when there is more than belongs to the payload. The bytes in dst must not
// be used then, and the connection should be closed.
func (d *Decryptor) Write(p []byte) error {
	for len(p) > 0 && !d.failed {
		n := int(min(d.left, ChunkBytes)) + chunkTagBytes
		if d.left == 0 {
			return d.fail()
		}
		whole := p
		if d.fill > 0 || len(p) < n {
			m := copy(d.buf[d.fill:n], p)
			d.fill += m
			p = p[m:]
			if d.fill < n {
				return nil
			}
			whole, d.fill = d.buf[:n], 0
		} else {
			whole, p = p[:n], p[n:]
		}
		if err := d.open(whole); err != nil {
			return err
		}
	}
	if d.failed {
		return ErrPayload
	}
	return nil
}

// open decrypts a chunk into its place, or by way of buf if that has seams.
func (d *Decryptor) open(whole []byte) error {
	n := len(whole) - chunkTagBytes
	if d.apart {
		if d.room -= int64(n); d.room < 0 {
			return d.fail()
		}
	}
	into := d.dst.next(n)
	straight := into != nil
	if !straight {
		into = d.buf[:n]
	}
	if _, err := d.aead.Open(into[:0], d.nonce.set(d.seq, d.chunk), whole, nil); err != nil {
		return d.fail()
	}
	if !straight {
		d.dst.put(into)
	}
	d.chunk++
	d.left -= int64(n)
	return nil
}

func (d *Decryptor) fail() error {
	d.failed = true
	d.dst.set(nil)
	return d.counters.refuse(ErrPayload)
}

// Check says whether the whole payload has arrived: nil, or ErrPayload.
func (d *Decryptor) Check() error {
	if d.failed {
		return ErrPayload
	}
	if d.left != 0 {
		return d.fail()
	}
	d.dst.set(nil)
	return nil
}

// pieces is memory in several parts, gone through from its beginning.
type pieces struct {
	list [][]byte
	off  int // into list[0]
}

func (p *pieces) set(list [][]byte) { p.list, p.off = list, 0 }

// skip drops parts that are used up.
func (p *pieces) skip() {
	for len(p.list) > 0 && p.off == len(p.list[0]) {
		p.list, p.off = p.list[1:], 0
	}
}

// next gives the following n bytes if they lie in one part, else nil.
func (p *pieces) next(n int) []byte {
	p.skip()
	if len(p.list) == 0 || len(p.list[0])-p.off < n {
		return nil
	}
	p.off += n
	return p.list[0][p.off-n : p.off : p.off]
}

// take gives the following n bytes, copied to buf if they lie apart.
func (p *pieces) take(n int, buf []byte) []byte {
	if b := p.next(n); b != nil {
		return b
	}
	for have := 0; have < n; p.skip() {
		m := copy(buf[have:n], p.list[0][p.off:])
		p.off += m
		have += m
	}
	return buf[:n]
}

// put copies b to the following bytes.
func (p *pieces) put(b []byte) {
	for ; len(b) > 0; p.skip() {
		m := copy(p.list[0][p.off:], b)
		p.off += m
		b = b[m:]
	}
}
