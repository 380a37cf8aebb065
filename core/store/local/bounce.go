package local

import (
	"errors"
	"fmt"
	"slices"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
)

// alignBytes is what places in a bounce buffer are multiples of: those of two blocks share no cache line.
const alignBytes = 64

// Bounce is a bounce buffer: memory into which a client copies the blocks of its puts, and from which a server of its
// host copies them. The server can only read it. It has a bound, and takes memory where it was used once. For one
// goroutine at a time, but what Take gave is the caller's alone.
type Bounce struct {
	fd     *sys.FD
	memory *sys.Mapping
	taken  []span // in order
	there  uint64 // a bit for each unitBytes that have their memory
}

type span struct{ at, end int64 }

// NewBounce makes one of message.MaxBounceBytes. The caller closes it.
func NewBounce() (b *Bounce, err error) {
	b = &Bounce{taken: make([]span, 0, 64)}
	if err = b.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("a bounce buffer: %w", err), b.Close())
	}
	return b, nil
}

// open makes the file and maps it. Afterwards nothing but this mapping can change it.
func (b *Bounce) open() (err error) {
	if b.fd, err = sys.NewMemfd("moewire-bounce"); err != nil {
		return err
	}
	if err = sys.Grow(b.fd, message.MaxBounceBytes); err != nil {
		return err
	}
	if b.memory, err = sys.Map(b.fd, 0, message.MaxBounceBytes); err != nil {
		return err
	}
	if err = b.memory.KeepFromChildren(); err != nil {
		return err
	}
	return sys.SealForReaders(b.fd)
}

// Take gives room for n bytes, at the lowest place that there is: what was used last is in the cache. The room is the
// caller's until Give or Close. false: there is no room, or no memory for it.
func (b *Bounce) Take(n int) (place int64, room []byte, ok bool) {
	size := (int64(n) + alignBytes - 1) / alignBytes * alignBytes
	at, i := int64(0), 0
	for i < len(b.taken) && b.taken[i].at-at < size {
		at, i = b.taken[i].end, i+1
	}
	if at+size > message.MaxBounceBytes || b.populate(at, at+size) != nil {
		return 0, nil, false
	}
	b.taken = slices.Insert(b.taken, i, span{at, at + size})
	return at, b.memory.Bytes()[at : at+int64(n) : at+int64(n)], true
}

// populate takes memory first: a want of it is an error here and no signal later.
func (b *Bounce) populate(at, end int64) error {
	for unit := at / unitBytes; unit*unitBytes < end; unit++ {
		if b.there>>unit&1 == 1 {
			continue
		}
		if err := sys.Reserve(b.fd, unit*unitBytes, unitBytes); err != nil {
			return err
		}
		b.there |= 1 << unit
	}
	return nil
}

// Give gives back what Take gave at a place.
func (b *Bounce) Give(place int64) {
	b.taken = slices.DeleteFunc(b.taken, func(s span) bool { return s.at == place })
}

// Close gives the memory back. A server that has it mapped keeps it until the end of its connection. Idempotent.
func (b *Bounce) Close() error {
	err := b.fd.Close()
	if b.memory != nil {
		err = errors.Join(err, b.memory.Unmap())
	}
	return err
}
