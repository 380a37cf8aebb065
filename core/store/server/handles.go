package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store/message"
)

// maxHandles is how many handles one connection may have.
const maxHandles = 1024

// How many bytes the blocks may have that are written in several messages at a time: one block, or so many. The bound of
// the server leaves room for puts, whatever a client has begun and does not go on with.
const (
	maxUnfinishedBytes    = 16 << 20 // of one connection
	maxAllUnfinishedBytes = 32 << 20 // of all
)

// handle is a block that a client writes in several messages, or has leased.
type handle struct {
	id      uint64 // changes with every use of the place; 0: none
	index   uint32
	until   time.Time
	pause   time.Duration // at most between two messages of a writing; 0: no bound
	next    time.Time     // when the next one must have come
	uses    int           // it is being read or written: nothing is given back
	ended   bool          // and then it is given back
	writing Writing
	lease   Lease
	job     message.Request // of a writing
	key     []byte
	space   *space
	given   int64 // bytes that were written, in order
}

// handles are those of one connection: no other one knows them.
type handles struct {
	mu   sync.Mutex
	all  []*handle
	free []uint32
	uses uint64

	unfinished    int64         // bytes of the writings
	allUnfinished *atomic.Int64 // of all connections
}

// reserve counts a block that is to be written. Another status than OK says that it may not be begun now.
func (hs *handles) reserve(bytes uint32) message.Status {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	n := int64(bytes)
	if hs.unfinished > 0 && hs.unfinished+n > maxUnfinishedBytes {
		return message.Quota
	}
	if all := hs.allUnfinished.Add(n); all > maxAllUnfinishedBytes && all > n {
		hs.allUnfinished.Add(-n)
		return message.WouldBlock
	}
	hs.unfinished += n
	return message.OK
}

// unreserve takes back what reserve has counted.
func (hs *handles) unreserve(bytes uint32) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.uncount(bytes)
}

func (hs *handles) uncount(bytes uint32) {
	hs.unfinished -= int64(bytes)
	hs.allUnfinished.Add(-int64(bytes))
}

// goesOn says that a message of a writing has come.
func (hs *handles) goesOn(h *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.next = time.Now().Add(h.pause)
}

// add reserves a place that nothing finds yet; nil if there are too many.
func (hs *handles) add(until time.Time) *handle {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if len(hs.free) == 0 {
		if len(hs.all) == maxHandles {
			return nil
		}
		hs.free = append(hs.free, uint32(len(hs.all)))
		hs.all = append(hs.all, &handle{index: uint32(len(hs.all))})
	}
	last := len(hs.free) - 1
	h := hs.all[hs.free[last]]
	hs.free = hs.free[:last]
	*h = handle{index: h.index, until: until, key: h.key[:0]}
	return h
}

// ready lets a place be found, under the id that is returned.
func (hs *handles) ready(h *handle) uint64 {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.uses++
	h.id = hs.uses<<16 | uint64(h.index)
	return h.id
}

// use finds a handle and keeps it until unuse.
func (hs *handles) use(id uint64) *handle {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.find(id)
	if h != nil {
		h.uses++
	}
	return h
}

func (hs *handles) find(id uint64) *handle {
	at := id & 0xffff
	if id == 0 || at >= uint64(len(hs.all)) || hs.all[at].id != id || hs.all[at].ended {
		return nil
	}
	return hs.all[at]
}

// unuse ends a use; nil is none.
func (hs *handles) unuse(h *handle) {
	if h == nil {
		return
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.uses--; h.uses == 0 && h.ended {
		hs.drop(h)
	}
}

// release ends a handle, now or with its last use. It reports whether there was one.
func (hs *handles) release(id uint64) bool {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.find(id)
	if h == nil {
		return false
	}
	hs.end(h)
	return true
}

func (hs *handles) end(h *handle) {
	if h.ended = true; h.uses == 0 {
		hs.drop(h)
	}
}

// drop gives back what a handle has. A writing that is not committed is given up.
func (hs *handles) drop(h *handle) {
	if h.writing != nil {
		h.writing.Release()
		h.writing = nil
		hs.uncount(h.job.Bytes)
	}
	if h.lease.Held() {
		h.lease.Release()
		h.lease = Lease{}
	}
	h.id, h.space = 0, nil
	hs.free = append(hs.free, h.index)
}

// expire ends what is over its time.
func (hs *handles) expire(now time.Time, counters *Counters) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, h := range hs.all {
		if h.id != 0 && !h.ended && (now.After(h.until) || h.pause > 0 && now.After(h.next)) {
			counters.Expired.Add(1)
			hs.end(h)
		}
	}
}

// close ends all, when nothing uses them.
func (hs *handles) close() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, h := range hs.all {
		if h.id != 0 && !h.ended {
			hs.end(h)
		}
	}
}
