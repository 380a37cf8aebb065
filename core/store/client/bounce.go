package client

import (
	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/message"
)

// minBounceBytes is the smallest block that goes by way of the bounce buffer. A smaller one is as fast in the message, where
// several of them are one write to the socket.
const minBounceBytes = 8 << 10

// bounceBuffer makes one, or nil: puts can be sent as well.
func bounceBuffer() *local.Bounce {
	b, err := local.NewBounce()
	if err != nil {
		return nil
	}
	return b
}

// flushBytes is how much is copied at most before the server hears of it: it copies while this side goes on.
const flushBytes = 256 << 10

// mayBounce reports whether the block of a put may go by way of the bounce buffer. The caller holds mu.
func (l *link) mayBounce(t *part) bool {
	return l.bounce != nil && t.code == message.Put && t.bytes >= minBounceBytes && t.bytes <= message.MaxBounceBytes &&
		!l.unbounced && l.brings()
}

// takeRoom takes room in the bounce buffer for a put. Where there is none its block is sent. The caller holds mu.
func (l *link) takeRoom(t *part) {
	if l.mayBounce(t) {
		t.offset, t.room, t.bounced = l.bounce.Take(t.bytes)
	}
}

// giveRoom gives back what takeRoom took, once the put was answered. The caller holds mu.
func (l *link) giveRoom(t *part) {
	if t.bounced {
		t.bounced, t.room = false, nil
		l.bounce.Give(t.offset)
	}
}

// bounceOff copies a block to the bounce buffer, and says in the request where it is, with the tag of the copy. The
// caller holds writing.
func (l *link) bounceOff(t *part, said *message.Request) {
	l.maker.Begin(t.keys[0], t.bytes)
	room := t.room
	for _, p := range t.bufs[0] {
		l.maker.Copy(room[:len(p)], p)
		room = room[len(p):]
	}
	said.Flags, said.Offset, said.Tag = message.FlagPlace, uint64(t.offset), l.maker.Tag()
	l.peer.client.counts.Bounced.Add(1)
}

// mustAnnounce reports whether the server must know now of the parts up to this one. The caller holds writing.
func (l *link) mustAnnounce(t *part, flush bool) bool {
	if t.bounced {
		l.unheard += t.bytes
	}
	if !flush && l.unheard < flushBytes {
		return false
	}
	l.unheard = 0
	return true
}

// bounceFailed sees to it that blocks are sent where the server could not copy one.
func (l *link) bounceFailed(status message.Status) {
	if status == message.NotCopied {
		l.mu.Lock()
		l.unbounced = true
		l.mu.Unlock()
	}
}

func closeBounce(b *local.Bounce) {
	if b != nil {
		_ = b.Close()
	}
}
