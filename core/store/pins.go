package store

import (
	"sync"
	"time"

	"github.com/moewire/moewire/core/store/record"
)

// MaxPins bounds the blocks that are pinned at a time.
const MaxPins = 1 << 16

// pins are blocks that are not evicted for a while. They last as long as the block, and the store is open.
type pins struct {
	mu    sync.Mutex
	all   map[record.Hash]pin
	first time.Time // none of them ends before
}

// pin is that of a block.
type pin struct {
	until  time.Time
	tenant *tenant // the block's
	bytes  int64   // of its record
}

// Pin keeps blocks from being evicted until a time, by position; a time that has come ends it. A block that is not
// there, or one pin more than MaxPins, is false.
func (s *Store) Pin(ns NS, keys [][]byte, until time.Time, pinned []bool) (num int) {
	n := s.names.of(ns)
	for i, key := range keys {
		pinned[i] = n != nil && record.CheckKey(key) == nil && s.pin(n.hashes.Of(key), until, n.tenant)
		if pinned[i] {
			num++
		}
	}
	return num
}

func (s *Store) pin(h record.Hash, until time.Time, of *tenant) bool {
	p := &s.pins
	p.mu.Lock()
	defer p.mu.Unlock()
	b, found := s.index.Get(h)
	if !found {
		return false
	}
	if _, again := p.all[h]; !again && len(p.all) >= MaxPins {
		if p.expire(time.Now()); len(p.all) >= MaxPins {
			return false
		}
	}
	p.set(h, pin{until, of, b.RecordBytes()})
	return true
}

// set pins a block, or gives its pin another end. The caller holds mu.
func (p *pins) set(h record.Hash, to pin) {
	if p.all == nil {
		p.all = map[record.Hash]pin{}
	}
	if _, again := p.all[h]; !again {
		to.tenant.pin(to.bytes)
	}
	if len(p.all) == 0 || to.until.Before(p.first) {
		p.first = to.until
	}
	p.all[h] = to
}

// end forgets the pin of a block, if it has one. The caller holds mu.
func (p *pins) end(h record.Hash) {
	if of, is := p.all[h]; is {
		delete(p.all, h)
		of.tenant.pin(-of.bytes)
	}
}

// holds reports whether a block is pinned. The caller holds mu.
func (p *pins) holds(h record.Hash) bool {
	of, is := p.all[h]
	return is && of.until.After(time.Now())
}

// lapse forgets the pins that have expired. It reports whether there was one.
func (p *pins) lapse() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, before := time.Now(), len(p.all)
	if before == 0 || p.first.After(now) {
		return false
	}
	p.expire(now)
	return len(p.all) < before
}

// expire forgets the pins that have expired. The caller holds mu.
func (p *pins) expire(now time.Time) {
	p.first = time.Time{}
	for h, of := range p.all {
		switch {
		case !of.until.After(now):
			p.end(h)
		case p.first.IsZero() || of.until.Before(p.first):
			p.first = of.until
		}
	}
}

// now is a copy of the pins that hold.
func (p *pins) now() map[record.Hash]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(time.Now())
	held := make(map[record.Hash]bool, len(p.all))
	for h := range p.all {
		held[h] = true
	}
	return held
}
