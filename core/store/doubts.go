package store

import (
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

const (
	// doubtFor is how long the disk has to fail at a block's record for the block to be lost.
	doubtFor = 10 * time.Second
	// maxDoubts bounds the blocks of which that is known.
	maxDoubts = 1 << 10
)

// doubts are blocks with a record that the disk could not read when it was last asked for. A disk that fails once may not fail the next
// time: until then such a block is a miss, and stays.
type doubts struct {
	num atomic.Int64
	mu  sync.Mutex
	met map[record.Hash]doubt
}

// doubt is when the disk failed at a block.
type doubt struct{ first, last time.Time }

// meet notes that a block could not be read. It reports whether that has been so for doubtFor. One more than may be noted is not, until
// others have come to their end: they do, at each look at them or because no look is taken at them.
func (d *doubts) meet(h record.Hash) (isLost bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	found, again := d.met[h]
	if !again {
		if found.first = now; !d.hasRoom(now) {
			return false
		}
	}
	found.last = now
	d.met[h] = found
	d.num.Store(int64(len(d.met)))
	return now.Sub(found.first) >= doubtFor
}

// hasRoom reports whether one more can be noted. Those that were not asked for in a long time are forgotten for it. The caller holds mu.
func (d *doubts) hasRoom(now time.Time) bool {
	if d.met == nil {
		d.met = map[record.Hash]doubt{}
	}
	if len(d.met) >= maxDoubts {
		maps.DeleteFunc(d.met, func(_ record.Hash, one doubt) bool { return now.Sub(one.last) > 2*doubtFor })
	}
	return len(d.met) < maxDoubts
}

// end is for a block that was read, or is gone.
func (d *doubts) end(h record.Hash) {
	if d.num.Load() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.met, h)
	d.num.Store(int64(len(d.met)))
}

// doubted is for a block with a record that is damaged, or could not be read. It reports whether the block was removed.
func (s *Store) doubted(b *index.Block, err error) bool {
	if errors.Is(err, record.ErrNone) || s.doubts.meet(b.Hash) {
		s.spoiled(b)
		return true
	}
	return false
}
