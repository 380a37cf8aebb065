package fifo

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/protocol"
)

// Where the words are, each of 64 bits: those of mw_fifo_words, then descriptors.
const (
	wordTaken = 0
	wordEnded = 1
	headWords = 8

	entrySeq    = 0
	entryWhat   = 1
	entryBytes  = 2
	entryNumber = 3
	entryWords  = 4
)

// MaxLength is the most descriptors that a queue has room for.
const MaxLength = 1 << 16

// Descriptor is one request of the device. What it means is between the kernel
// and the program that takes it.
type Descriptor struct {
	What, Bytes, Number uint64
}

// Words is how many words a queue of so many descriptors takes.
func Words(length int) int { return headWords + length*entryWords }

// Queue is the host's end. Take is for one goroutine at a time; while Restart runs,
// nothing else may use the queue.
type Queue struct {
	words  []uint64
	length uint64
	next   uint64 // the number to be taken
}

// New makes a queue, of generation 0, of memory that the device sees: zeros,
// Words(length) of them. length is a power of two up to MaxLength. The memory
// stays the caller's, and is there as long as the queue is used.
func New(words []uint64, length int) (*Queue, error) {
	switch {
	case length < 1 || length > MaxLength || bits.OnesCount64(uint64(length)) != 1:
		return nil, fmt.Errorf("fifo: length is %d, a power of two from 1 to %d is needed", length, MaxLength)
	case len(words) < Words(length):
		return nil, fmt.Errorf("fifo: words has %d, %d are needed for length %d", len(words), Words(length), length)
	}
	return &Queue{words: words, length: uint64(length)}, nil
}

func (q *Queue) entry(number uint64) []uint64 {
	at := headWords + entryWords*int(number&(q.length-1))
	return q.words[at : at+entryWords : at+entryWords]
}

// Take moves the oldest descriptors to out, and returns how many. What it has
// taken makes room for others. It never blocks and allocates nothing.
func (q *Queue) Take(out []Descriptor) (n int) {
	for ; n < len(out); n++ {
		d := q.entry(q.next)
		if atomic.LoadUint64(&d[entrySeq]) != q.next+1 {
			break
		}
		out[n] = Descriptor{What: d[entryWhat], Bytes: d[entryBytes], Number: d[entryNumber]}
		q.next++
	}
	if n > 0 {
		atomic.StoreUint64(&q.words[wordTaken], q.next)
	}
	return n
}

// End tells the device that the host takes no more: threads that wait for room
// stop, with the reason. It is not 0; the first one stays. Safe for concurrent
// use.
func (q *Queue) End(reason uint64) { atomic.CompareAndSwapUint64(&q.words[wordEnded], 0, reason) }

// EndReason is the reason of End, 0 if there was none. Safe for concurrent use.
func (q *Queue) EndReason() uint64 { return atomic.LoadUint64(&q.words[wordEnded]) }

// Restart begins the next generation: what was pushed and not taken is
// forgotten, also what a broken device had begun. It returns the number that
// the device's `next` has to be set to. Nothing of the device pushes meanwhile.
func (q *Queue) Restart() (next uint64) {
	q.next = (q.next>>protocol.FifoShift + 1) << protocol.FifoShift
	atomic.StoreUint64(&q.words[wordTaken], q.next)
	atomic.StoreUint64(&q.words[wordEnded], 0)
	return q.next
}
