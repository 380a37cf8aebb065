package link

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
)

// The goroutine that reconnects a link looks at the clock itself, but not while its
// device holds up a command. So another goroutine watches the clock, too.

// stuckFor is how long past the bound of a break that goroutine may be the first
// to say why the link has failed.
const stuckFor = time.Second

var errStuck = errors.New("its device does not answer")

// limit has the link fail if a break is still on then. The goroutine that makes the
// link again calls lift at its end: after that nothing comes any more.
func (l *Link) limit(number uint64, within time.Duration) (lift func()) {
	looked := make(chan struct{})
	expiry := time.AfterFunc(max(within, within+stuckFor), func() {
		safego.Go("link limit", func() {
			defer close(looked)
			l.overdue(number)
		}, nil)
	})
	return func() {
		if !expiry.Stop() {
			<-looked
		}
	}
}

// overdue leaves the endpoint to the goroutine that reconnects the link: it is not
// up, nor will be, since that looks under the same lock whether it has failed.
func (l *Link) overdue(number uint64) {
	m := &l.reconnector
	m.mu.Lock()
	err := fmt.Errorf("link to rank %d: %w; it was not reconnected in time: %w: %w",
		l.rank, m.cause, errStuck, os.ErrDeadlineExceeded)
	failed := m.breaks == number && m.state.Load() != linkUp && l.failed.CompareAndSwap(nil, err)
	m.mu.Unlock()
	if failed {
		l.refuse(err)
		l.ring()
	}
}
