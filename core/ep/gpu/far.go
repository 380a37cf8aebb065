package gpu

import (
	"errors"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/proxy"
)

// far is what a buffer has for ranks of other hosts: the proxy that carries
// messages between their kernels and this rank's. Guarded by Buffer.life but for
// what is atomic.
type far struct {
	ranks   atomic.Uint64               // of the latest meeting
	reached uint64                      // of these: the device has a way to them
	proxy   atomic.Pointer[proxy.Proxy] // nil: no rank was ever far
	queue   *fifo.Queue
	words   *cuda.HostMemory // of the queue of descriptors
	mail    *cuda.HostMemory
	// seeOffFor is that of the constant, but in tests.
	seeOffFor time.Duration
}

const (
	// queueLength is more descriptors than there are ever: one loan and one
	// message of each rank.
	queueLength = 128
	// longestMessage bounds what kernels put into one message: they count some of
	// its bytes in 32 bits.
	longestMessage = 1 << 30
	// seeOffFor bounds how long a rank that leaves waits until far ranks have
	// taken what was sent to them.
	seeOffFor = time.Second
)

// ring is the memory of messages, as cudaring makes it.
type ring interface {
	transport.Segment
	Address() uint64
	Flush() (func() error, error)
}

// ringsOf are those of a far rank; false: the device does not see them.
func ringsOf(carrier transport.Far, rank int) (send, receive ring, ok bool) {
	c, ok := carrier.(transport.FarRings)
	if !ok {
		return nil, nil, false
	}
	to, from := c.Rings(rank)
	send, ok = to.(ring)
	if !ok {
		return nil, nil, false
	}
	receive, ok = from.(ring)
	return send, receive, ok
}

// farOf are the ranks of other hosts now.
func farOf(dom transport.Domain) (transport.Far, uint64) {
	carrier := dom.Far()
	if carrier == nil {
		return nil, 0
	}
	return carrier, carrier.Ranks()
}

// checkFar: a device reaches ranks of other hosts only by memory that it sees.
func checkFar(dom transport.Domain) error {
	carrier, ranks := farOf(dom)
	for rest := ranks; rest != 0; rest &= rest - 1 {
		r := bits.TrailingZeros64(rest)
		if _, _, ok := ringsOf(carrier, r); !ok {
			return invalid("rank %d is on another host; buffers on CUDA are for the ranks of one, unless their messages lie in memory of the device", r)
		}
	}
	return nil
}

func (b *Buffer) isFar(rank int) bool { return b.far.ranks.Load()>>rank&1 == 1 }

// silent are those of the ranks that write nothing more: far ranks never do
// themselves.
func (b *Buffer) silent(ranks uint64) uint64 {
	return b.judge.Silent(ranks) | ranks&b.far.ranks.Load()
}

// reachFar gives the device its way to the far ranks of now. Nothing of this rank
// runs on it. The caller holds b.life.
func (b *Buffer) reachFar() error {
	carrier, ranks := farOf(b.dom)
	b.stopFar()
	f := &b.far
	if ranks == 0 {
		if f.queue == nil {
			return nil // there never was one
		}
		return b.engine.SetMailbox(cuda.Mailbox{})
	}
	if err := b.allocateFar(); err != nil {
		return err
	}
	box, err := b.openMailbox(carrier, ranks)
	if err != nil {
		return err
	}
	if box.Next, err = f.proxy.Load().Start(carrier.(transport.FarPlaces)); err != nil {
		return err
	}
	if err := b.engine.SetMailbox(box); err != nil {
		return err
	}
	f.reached = ranks
	return nil
}

// allocateFar makes the queue, which counts generations of all meetings.
func (b *Buffer) allocateFar() (err error) {
	f := &b.far
	if f.words == nil {
		if f.words, err = b.dev.AllocHost(uint64(fifo.Words(queueLength)) * 8); err != nil {
			return err
		}
	}
	if f.mail == nil {
		if f.mail, err = b.dev.AllocHost(uint64(proxy.MailWords(b.ranks)) * 8); err != nil {
			return err
		}
	}
	if f.queue == nil {
		f.queue, err = fifo.New(f.words.Words(), queueLength)
	}
	return err
}

// openMailbox makes a proxy of now: messages may have another length at each
// meeting.
func (b *Buffer) openMailbox(carrier transport.Far, ranks uint64) (box cuda.Mailbox, err error) {
	f := &b.far
	box = cuda.Mailbox{
		Ranks: ranks, Words: f.words.Address(), Length: queueLength, Mail: f.mail.Address(),
		MessageBytes: min(carrier.MaxMessageBytes(), longestMessage),
	}
	var flush func() error
	for rest := ranks; rest != 0; rest &= rest - 1 {
		r := bits.TrailingZeros64(rest)
		send, receive, _ := ringsOf(carrier, r)
		box.Send[r], box.Receive[r] = send.Address(), receive.Address()
		one, err := receive.Flush()
		if err != nil {
			return box, err
		}
		if one != nil {
			flush = one // all are of one device
		}
	}
	made, err := proxy.New(proxy.Config{
		NumRanks: b.ranks, Queue: f.queue, Mail: f.mail.Words(), LoanBytes: box.MessageBytes, Flush: flush,
	})
	f.proxy.Store(made)
	return box, err
}

// stopFar ends the proxy; what the device has pushed is done.
func (b *Buffer) stopFar() {
	if p := b.far.proxy.Load(); p != nil {
		p.Stop()
	}
}

// ringFar wakes the proxy: something was launched, or this rank's bell has rung.
func (b *Buffer) ringFar() {
	if p := b.far.proxy.Load(); p != nil {
		p.Ring()
	}
}

// seeOff comes before this rank leaves by its own will: what is on its way to far
// ranks would be lost with its links. It waits until those that live have taken it,
// also what the device has pushed and the proxy has not seen yet.
func (b *Buffer) seeOff() {
	if b.far.ranks.Load() == 0 || b.usable() != nil {
		return
	}
	p := b.far.proxy.Load()
	ticket := p.Settle()
	for end := time.Now().Add(b.far.seeOffFor); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if !p.Settled(ticket) {
			continue
		}
		carrier, ranks := farOf(b.dom)
		if ranks == 0 || carrier.Untaken()&b.Members() == 0 {
			return
		}
	}
}

// proxyErr is why the proxy has failed, if it has.
func (b *Buffer) proxyErr() error {
	if p := b.far.proxy.Load(); p != nil {
		return p.Err()
	}
	return nil
}

// freeFar comes when the engine is closed. Idempotent.
func (b *Buffer) freeFar() error {
	var all []error
	for _, m := range []*cuda.HostMemory{b.far.words, b.far.mail} {
		if m != nil {
			all = append(all, m.Close())
		}
	}
	return errors.Join(all...)
}
