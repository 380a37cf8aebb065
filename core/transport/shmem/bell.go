package shmem

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// bell is the shared memory by which peers tell a transport that some of its
// endpoints have news. What they write there can wake it for nothing, or keep
// it asleep until its deadline, and no more.
type bell struct {
	count    *atomic.Uint64
	sleepers *atomic.Uint64
	news     [numNewsWords]*atomic.Uint64
}

func newBell(data []byte) bell {
	b := bell{count: sys.Word(data, bellCountOff), sleepers: sys.Word(data, bellSleepersOff)}
	for i := range b.news {
		b.news[i] = sys.Word(data, bellNewsOff+8*int64(i))
	}
	return b
}

// ring says that an endpoint of the bell's owner has news.
func (b *bell) ring(slot uint32) {
	word, bit := b.news[slot/64], uint64(1)<<(slot%64)
	if word.Load()&bit == 0 {
		word.Or(bit)
	}
	b.wake()
}

// wake ends a sleep, if there is one: a goroutine that is about to sleep looks once more
// after having said so.
func (b *bell) wake() {
	if b.sleepers.Load() == 0 {
		return
	}
	b.count.Add(1)
	_ = sys.FutexWakeAll(b.count) // the sleeper has a deadline
}

// sleep ends when the bell was rung, d has passed, or is returns true.
func (b *bell) sleep(d time.Duration, is func() bool) error {
	seen := b.count.Load()
	b.sleepers.Store(1)
	defer b.sleepers.Store(0)
	if is() {
		return nil
	}
	return sys.FutexWait(b.count, uint32(seen), d)
}

func (b *bell) hasNews() bool {
	for _, word := range b.news {
		if word.Load() != 0 {
			return true
		}
	}
	return false
}

// bitmap is a set of endpoints by their slots, of this process only.
type bitmap [numNewsWords]atomic.Uint64

func (m *bitmap) set(slot uint32)   { m[slot/64].Or(1 << (slot % 64)) }
func (m *bitmap) clear(slot uint32) { m[slot/64].And(^(uint64(1) << (slot % 64))) }

func (m *bitmap) any() bool {
	for i := range m {
		if m[i].Load() != 0 {
			return true
		}
	}
	return false
}

// lowest takes the lowest bit out of a word that is not 0.
func lowest(word *uint64) uint32 {
	n := bits.TrailingZeros64(*word)
	*word &= *word - 1
	return uint32(n)
}
