package gpu

import "time"

// SetQuietTimeout changes that of Config, between calls.
func (b *Buffer) SetQuietTimeout(d time.Duration) { b.cfg.QuietTimeout = d }

// SetEndAfter changes that of Config.
func (b *Buffer) SetEndAfter(d time.Duration) {
	b.fate.Lock()
	defer b.fate.Unlock()
	b.cfg.EndAfter = d
}

// SetSeeOffFor changes how long Prepare and Close wait for far ranks.
func (b *Buffer) SetSeeOffFor(d time.Duration) { b.far.seeOffFor = d }

// DeviceOps is how many operations the device has begun, and DeviceWait names its
// wait for a rank.
func (b *Buffer) DeviceOps() uint64 { return b.engine.Ops() }

func (b *Buffer) DeviceWait(rank int) uint64 { return b.engine.Wait(rank) }

// SkipSums has n combines been made, as it were.
func (b *Buffer) SkipSums(n Sum) { b.latestSum += n }

// ProxyRuns reports whether the proxy looks at the links.
func (b *Buffer) ProxyRuns() bool { return b.far.queue.Over() == 0 }

// Asks has the watcher ask the device, as it were, until the function returned is called.
func (b *Buffer) Asks() (answered func()) {
	b.fate.Lock()
	defer b.fate.Unlock()
	asking := make(chan struct{})
	b.watch.asking = asking
	return func() {
		b.fate.Lock()
		defer b.fate.Unlock()
		close(asking)
		b.watch.asking = nil
	}
}

// Waiting is watch.waiting of a watcher that has seen nothing yet.
func Waiting(ranks uint64, now time.Time, wait func(rank int) uint64) time.Time {
	return new(watch).waiting(ranks, now, wait)
}

// FarSent is how many messages the proxy has sent.
func (b *Buffer) FarSent() uint64 { return b.far.proxy.Load().Stats().Sent }

// FarMail are the words that the proxy shows of a far rank, and FarRing is where messages
// of it come.
func (b *Buffer) FarMail(rank int) []uint64 { return b.far.mail.Words()[8*rank:][:8] }

func (b *Buffer) FarRing(rank int) uint64 {
	_, receive, _ := ringsOf(b.dom.Far(), rank)
	return receive.Address()
}
