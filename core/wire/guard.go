package wire

import (
	"errors"
	"sync"
)

// DefaultNumHellos is how many hellos a Guard remembers unless told otherwise.
const DefaultNumHellos = 8192

// Guard remembers the hellos of about the last minute, so that a recorded one is refused
// before it is looked at. One per process, shared by all its servers. It forgets a hello
// once its time alone has it refused, and never holds more than its bound. Safe for
// concurrent use.
//
// It is the first line only. A recorded hello that gets past it, because the process has
// been restarted, is never confirmed: that takes the key and this side's new nonce.
type Guard struct {
	mu    sync.Mutex
	until map[[noncePartBytes]byte]uint64 // ns since 1970
	queue [][noncePartBytes]byte          // ring, oldest first
	head  int
	num   int
}

const noncePartBytes = 16 // of 32 random bytes: enough to tell nonces apart

// NewGuard makes one for at most num hellos; 0 means DefaultNumHellos.
func NewGuard(num int) (*Guard, error) {
	if num < 0 {
		return nil, errors.New("wire: number of hellos is negative")
	}
	if num == 0 {
		num = DefaultNumHellos
	}
	return &Guard{
		until: make(map[[noncePartBytes]byte]uint64, num),
		queue: make([][noncePartBytes]byte, num),
	}, nil
}

// admit notes a genuine hello signed at a time that is fresh: 0, ErrReplay or
// ErrBusy.
func (g *Guard) admit(nonce []byte, signed, now uint64) Reason {
	g.mu.Lock()
	defer g.mu.Unlock()
	part := [noncePartBytes]byte(nonce)
	if _, found := g.until[part]; found {
		return ErrReplay
	}
	g.expire(now)
	if g.num == len(g.queue) {
		return ErrBusy
	}
	g.queue[(g.head+g.num)%len(g.queue)] = part
	g.num++
	g.until[part] = signed + uint64(MaxSkew)
	return 0
}

// expire forgets hellos that fresh would refuse. They are in order of arrival,
// not of time, so that one dated ahead holds up later ones, for at most twice
// MaxSkew.
func (g *Guard) expire(now uint64) {
	for g.num > 0 && g.until[g.queue[g.head]] < now {
		delete(g.until, g.queue[g.head])
		g.head = (g.head + 1) % len(g.queue)
		g.num--
	}
}
