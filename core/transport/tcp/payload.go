package tcp

import "github.com/moewire/moewire/core/wire"

// advance notes that n more bytes are in place.
func (x *receiver) advance(n int) {
	for n > 0 {
		p := &x.rest[x.from]
		take := min(n, len(*p))
		*p = (*p)[take:]
		n -= take
		if len(*p) == 0 {
			x.from++
		}
	}
}

// put brings bytes from buf to their place.
func (x *receiver) put(p []byte) error {
	if x.region != nil {
		x.region.mu.RLock()
		defer x.region.mu.RUnlock()
		x.drop = x.drop || x.region.closed
	}
	switch {
	case x.drop:
		return nil
	case x.crypt != nil:
		return x.crypt.Write(p)
	}
	for len(p) > 0 {
		n := copy(x.rest[x.from], p)
		x.advance(n)
		p = p[n:]
	}
	return nil
}

// feedWhole shows the digest the chunks that have arrived since, while they are
// in the processor's cache.
func (x *receiver) feedWhole() {
	n := x.bytes - x.left - x.fed
	if n -= n % wire.ChunkBytes; n == 0 {
		return
	}
	if x.region != nil {
		x.region.mu.RLock()
		defer x.region.mu.RUnlock()
		x.drop = x.drop || x.region.closed
	}
	if !x.drop {
		x.feed(n)
	}
}

// feed shows the digest the next n bytes, which are in place.
func (x *receiver) feed(n int) {
	x.fed += n
	for n > 0 {
		p := x.all[x.piece][x.off:]
		p = p[:min(n, len(p))]
		x.digest.Write(p)
		x.off += len(p)
		n -= len(p)
		if x.off == len(x.all[x.piece]) {
			x.piece, x.off = x.piece+1, 0
		}
	}
}

func (x *receiver) check() error {
	if x.region != nil {
		x.region.mu.RLock()
		defer x.region.mu.RUnlock()
		x.drop = x.drop || x.region.closed
	}
	switch {
	case x.drop:
		return errRegion
	case x.crypt != nil:
		return x.crypt.Check()
	}
	x.feed(x.bytes - x.fed)
	return x.digest.Check()
}
