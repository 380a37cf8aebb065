package cpu

import (
	"time"
)

// maxDrain bounds how long a rank that leaves waits for remote ranks: those that
// run take messages at once, those that do not are noticed by then.
const maxDrain = time.Second

// drainMessages runs before this rank leaves the group by its own will. Local ranks
// can still read afterwards what it has published. Messages that are still on their
// way to remote ranks would be lost with the link, so it waits until they have them.
func (b *Buffer) drainMessages() {
	for end := b.now().Add(maxDrain); !b.messagesDrained() && b.now().Before(end); {
		ticket := b.dom.PrepareSleep() // before the look that counts
		if b.messagesDrained() {
			b.dom.CancelSleep()
			return
		}
		b.dom.Sleep(ticket, b.pollInterval)
	}
}

// messagesDrained sends what is left to send, and reports whether every remote member that
// lives has taken it.
func (b *Buffer) messagesDrained() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.remote == nil || b.usable() != nil || b.progress() != nil {
		return true
	}
	for r := range b.remoteOf(b.members()).And(b.remote.carrier.Untaken()).All() {
		if p := b.peers[r].Proc; p != nil && !p.Dying() {
			return false
		}
	}
	return true
}
