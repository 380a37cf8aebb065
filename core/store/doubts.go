package store

import (
	"errors"
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

// doubts are blocks whose record the disk could not read when it was last asked for. A disk that fails once may not fail the next
// time: until then such a block is a miss, and stays.
type doubts struct {
	num   atomic.Int64
	mu    sync.Mutex
	since map[record.Hash]time.Time
}

// meet notes that a block could not be read. It reports whether that has been so for doubtFor.
func (d *doubts) meet(h record.Hash) (isLost bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, again := d.since[h]
	if again {
		return time.Since(since) >= doubtFor
	}
	if d.since == nil || len(d.since) == maxDoubts {
		d.since = map[record.Hash]time.Time{} // those that are met again get a new time
	}
	d.since[h] = time.Now()
	d.num.Store(int64(len(d.since)))
	return false
}

// end is for a block that was read, or is gone.
func (d *doubts) end(h record.Hash) {
	if d.num.Load() == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.since, h)
	d.num.Store(int64(len(d.since)))
}

// doubted is for a block whose record is damaged, or could not be read. It reports whether the block was removed.
func (s *Store) doubted(b *index.Block, err error) bool {
	if errors.Is(err, record.ErrNone) || s.doubts.meet(b.Hash) {
		s.spoiled(b)
		return true
	}
	return false
}
