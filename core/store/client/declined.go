package client

import (
	"fmt"
	"math/bits"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// declined reads the refusal of a request, and counts it.
func (l *link) declined(head *wire.Head, t *part) error {
	status := message.Status(head.Status)
	text := l.room(int(min(head.PayloadBytes, message.MaxTextBytes)))
	if err := l.in.Read(text); err != nil {
		return err
	}
	if err := l.in.End(); err != nil {
		return err
	}
	l.bounceFailed(status)
	l.refused(status, t.code)
	if t.code == message.Put && status == message.TooLarge {
		l.tooLarge(t, fmt.Sprintf("%s: %s", l.peer.name, text))
	}
	return nil
}

// tooLarge passes on that no segment of the server holds a block: another try is of no use, so it must not look like a server
// that is full.
func (l *link) tooLarge(t *part, text string) {
	if t.call != nil {
		t.call.tooLarge.CompareAndSwap("", text)
	}
	class := uint32(1) << bits.Len32(uint32(t.bytes)) // a block has 256 MiB at most
	if l.peer.tooLarge.Or(class)&class == 0 {
		l.peer.client.cfg.Warn("a block was not stored, and others as large will not be: " + text)
	}
}
