package ep

import (
	"math/bits"
	"time"
)

// seeOffFor bounds how long a rank that leaves waits for far ranks: those that
// run take messages at once, those that do not are noticed by then.
const seeOffFor = time.Second

// seeOff comes before this rank leaves the group by its own will. Near ranks
// can read what it has published also afterwards; what is still on its way to
// far ones would be lost with the link. So it waits until they have it.
func (b *Buffer) seeOff() {
	for end := b.now().Add(seeOffFor); !b.seenOff() && b.now().Before(end); {
		ticket := b.dom.PrepareSleep() // before the look that counts
		if b.seenOff() {
			b.dom.CancelSleep()
			return
		}
		b.dom.Sleep(ticket, b.patience)
	}
}

// seenOff says what there is to say, and reports whether every far member that
// lives has taken it.
func (b *Buffer) seenOff() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.far == nil || b.usable() != nil || b.progress() != nil {
		return true
	}
	for rest := b.farOf(b.members()) & b.far.carrier.Untaken(); rest != 0; rest &= rest - 1 {
		if p := b.peers[bits.TrailingZeros64(rest)].proc; p != nil && !p.Dying() {
			return false
		}
	}
	return true
}
