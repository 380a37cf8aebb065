package cuda

import (
	"errors"
	"sync/atomic"
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/proxy"
	"github.com/moewire/moewire/core/group/rankset"
)

// remote is what a buffer has for ranks of other hosts: the proxy that carries messages
// between their kernels and this rank's. Buffer.lifecycleMu guards it, but for the
// atomic fields.
type remote struct {
	ranks   rankset.Atomic              // of the latest rendezvous
	reached rankset.Set                 // of these: the device has a way to them
	proxy   atomic.Pointer[proxy.Proxy] // nil: no rank was ever remote
	queue   *fifo.Queue
	words   *device.HostMemory // of the queue of descriptors
	mail    *device.HostMemory
	// maxDrain is the constant of that name, but in tests.
	maxDrain time.Duration
}

const (
	// queueLength is more descriptors than there ever are: one lease and one message of
	// each rank.
	queueLength = 128
	// longestMessage bounds what kernels put into one message: they count some of
	// its bytes in 32 bits.
	longestMessage = 1 << 30
	// maxDrain bounds how long a rank that leaves waits until remote ranks have
	// taken what was sent to them.
	maxDrain = time.Second
)

// ring is the memory of messages, as cudaring makes it.
type ring interface {
	domain.Segment
	Address() uint64
	Flush() (func() error, error)
}

// ringsOf are those of a remote rank; false: the device does not see them.
func ringsOf(carrier domain.Remote, rank int) (send, receive ring, ok bool) {
	c, ok := carrier.(domain.RemoteRings)
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

// remoteOf are the ranks of other hosts now.
func remoteOf(dom domain.Domain) (domain.Remote, rankset.Set) {
	carrier := dom.Remote()
	if carrier == nil {
		return nil, rankset.Set{}
	}
	return carrier, carrier.Ranks()
}

// checkRemote: a device reaches ranks of other hosts only by memory that it sees.
func checkRemote(dom domain.Domain) error {
	carrier, ranks := remoteOf(dom)
	for r := range ranks.All() {
		if _, _, ok := ringsOf(carrier, r); !ok {
			return ep.Invalid("rank %d is on another host; buffers on CUDA are for the ranks of one, unless their messages lie in memory of the device", r)
		}
	}
	return nil
}

func (b *Buffer) isRemote(rank int) bool { return b.remote.ranks.Load().Has(rank) }

// quiesced returns those of the ranks that write nothing more: remote ranks never write
// into this rank's memory themselves.
func (b *Buffer) quiesced(ranks rankset.Set) rankset.Set {
	return b.detector.Quiesced(ranks).Or(ranks.And(b.remote.ranks.Load()))
}

// reachRemote gives the device its way to the present remote ranks. Nothing of this
// rank runs on it. The caller holds b.lifecycleMu.
func (b *Buffer) reachRemote() error {
	carrier, ranks := remoteOf(b.dom)
	b.stopRemote()
	f := &b.remote
	if ranks.Empty() {
		if f.queue == nil {
			return nil // there never was one
		}
		return b.engine.SetMailbox(device.Mailbox{})
	}
	if err := b.allocateRemote(); err != nil {
		return err
	}
	box, err := b.openMailbox(carrier, ranks)
	if err != nil {
		return err
	}
	if box.Next, err = f.proxy.Load().Start(carrier.(domain.RemotePlaces)); err != nil {
		return err
	}
	if err := b.engine.SetMailbox(box); err != nil {
		return err
	}
	f.reached = ranks
	return nil
}

// allocateRemote makes the queue, which counts generations of all rendezvous.
func (b *Buffer) allocateRemote() (err error) {
	f := &b.remote
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

// openMailbox makes a proxy for this rendezvous: messages may have another length at
// each one.
func (b *Buffer) openMailbox(carrier domain.Remote, ranks rankset.Set) (box device.Mailbox, err error) {
	f := &b.remote
	box = device.Mailbox{
		Ranks: ranks, Words: f.words.Address(), Length: queueLength, Mail: f.mail.Address(),
		MessageBytes: min(carrier.MaxMessageBytes(), longestMessage),
	}
	var flush func() error
	for r := range ranks.All() {
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
		NumRanks: b.ranks, Queue: f.queue, Mail: f.mail.Words(), LeaseBytes: box.MessageBytes, Flush: flush,
	})
	f.proxy.Store(made)
	return box, err
}

// stopRemote ends the proxy; what the device has pushed is done.
func (b *Buffer) stopRemote() {
	if p := b.remote.proxy.Load(); p != nil {
		p.Stop()
	}
}

// ringRemote wakes the proxy: something was launched, or this rank's bell has rung.
func (b *Buffer) ringRemote() {
	if p := b.remote.proxy.Load(); p != nil {
		p.Ring()
	}
}

// drainMessages comes before this rank leaves by its own will: messages on their way to
// remote ranks would be lost with its links. It waits until the remote ranks that live
// have taken them, also those that the device has pushed and the proxy has not seen
// yet.
func (b *Buffer) drainMessages() {
	if b.remote.ranks.Load().Empty() || b.usable() != nil {
		return
	}
	p := b.remote.proxy.Load()
	ticket := p.Settle()
	for end := time.Now().Add(b.remote.maxDrain); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if !p.Settled(ticket) {
			continue
		}
		carrier, ranks := remoteOf(b.dom)
		if ranks.Empty() || carrier.Untaken().And(b.Members()).Empty() {
			return
		}
	}
}

// proxyErr is why the proxy has failed, if it has.
func (b *Buffer) proxyErr() error {
	if p := b.remote.proxy.Load(); p != nil {
		return p.Err()
	}
	return nil
}

// freeRemote comes after the engine is closed. Idempotent.
func (b *Buffer) freeRemote() error {
	var all []error
	for _, m := range []*device.HostMemory{b.remote.words, b.remote.mail} {
		if m != nil {
			all = append(all, m.Close())
		}
	}
	return errors.Join(all...)
}
