package cuda

import (
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// SetDrainTimeout changes that of Config, between calls.
func (b *Buffer) SetDrainTimeout(d time.Duration) { b.cfg.DrainTimeout = d }

// SetEndAfter changes that of Config.
func (b *Buffer) SetEndAfter(d time.Duration) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.cfg.EndAfter = d
}

// SetMaxDrain changes how long Prepare and Close wait for remote ranks.
func (b *Buffer) SetMaxDrain(d time.Duration) { b.remote.maxDrain = d }

// DeviceOps is how many operations the device has begun, and DeviceWait names its
// wait for a rank.
func (b *Buffer) DeviceOps() uint64 { return b.engine.Ops() }

func (b *Buffer) DeviceWait(rank int) uint64 { return b.engine.Wait(rank) }

// SkipTickets has n combines been made, as it were.
func (b *Buffer) SkipTickets(n ReduceTicket) { b.latestTicket += n }

// ProxyRuns reports whether the proxy looks at the links.
func (b *Buffer) ProxyRuns() bool { return b.remote.queue.EndReason() == 0 }

// Asks has the watcher ask the device, as it were, until the function returned is called.
func (b *Buffer) Asks() (answered func()) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	asking := make(chan struct{})
	b.watch.asking = asking
	return func() {
		b.stateMu.Lock()
		defer b.stateMu.Unlock()
		close(asking)
		b.watch.asking = nil
	}
}

// Waiting is watch.waiting of a watcher that has seen nothing yet.
func Waiting(ranks rankset.Set, now time.Time, wait func(rank int) uint64) time.Time {
	return new(watch).waiting(ranks, now, wait)
}

// RemoteSent is how many messages the proxy has sent.
func (b *Buffer) RemoteSent() uint64 { return b.remote.proxy.Load().Stats().Sent }

// RemoteMail are the words that the proxy shows of a remote rank, and RemoteRing is where messages
// of it come.
func (b *Buffer) RemoteMail(rank int) []uint64 { return b.remote.mail.Words()[8*rank:][:8] }

func (b *Buffer) RemoteRing(rank int) uint64 {
	_, receive, _ := ringsOf(b.dom.Remote(), rank)
	return receive.Address()
}

// NumSlots returns S.
func (b *Buffer) NumSlots() int { return len(b.slots) }
