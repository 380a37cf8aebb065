package client

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// errHung is why a link ends over which nothing comes any more.
var errHung = errors.New("the server does not answer")

// errChanged is why a link ends that has brought other bytes than the server has sent.
var errChanged = errors.New("a block was changed on its way from the server")

// errDenied means that the client's key has no right to the namespace.
var errDenied = errors.New("the key has no right to the namespace")

// link is one connection to a server. Its parts are its own until it has ended, and
// complete then: so no memory of a caller is touched after its completion.
type link struct {
	peer       *peer
	nc         net.Conn
	in         *stream.Reader
	opened     message.Opened
	secret     [32]byte    // masks the key of tags
	tags       *tag.Tagger // to be cloned
	invited    [32]byte    // the secret of share
	view       *local.View // of the server's arena, if blocks are read there
	arenaBytes uint64
	localConn  net.Conn      // a shorter way to the server that has come with the view
	bounce     *local.Bounce // from which the server copies blocks of puts; nil: they are sent
	hold       time.Duration // how long a lease lives at most, where there is a view
	lacks      error         // why there is no view now, and may be one later
	successor  *link         // for which it was left; guarded by peer.mu
	ran        chan struct{} // closed once that has run
	gone       chan struct{} // closed once it ends

	mu      sync.Mutex
	wake    sync.Cond
	queue   []*part // not sent
	running map[uint64]*part
	nextID  uint64
	err     error // why it ends
	// unbounced says that the server could not copy a block: they are sent from now on
	unbounced bool
	sending   bool // something is being written
	sealed    bool // and something was that is not written yet
	turn      turn // of the one that reads replies
	ended     bool // the other side has, or that cannot be watched

	turns chan struct{}   // the receiver's begin
	sock  *sys.SocketConn // nil: a connection at which only the receiver waits

	wrote atomic.Int64 // when bytes went last

	writing sync.Mutex // out and what it sends
	out     *stream.Writer
	shut    bool // nothing may be sent any more
	head    wire.Head
	extra   [message.RequestBytes]byte
	table   []byte
	pieces  [][]byte
	unheard int         // bytes of blocks that were copied for the server, which was not told yet
	maker   *tag.Tagger // of tags of blocks that are put

	entries  []byte
	hits     []bool
	outcomes [message.MaxKeys]outcome
	checker  *tag.Tagger // of tags of blocks that come
}

// Format never shows a secret, whatever the verb.
func (*link) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "client.link") }

func newLink(p *peer, nc net.Conn, session *wire.Session) *link {
	timeout := p.client.cfg.Timeout
	l := &link{peer: p, nc: nc, running: map[uint64]*part{}, gone: make(chan struct{}), secret: session.Export(message.TagSecret)}
	l.invited = session.Export(message.ShareSecret)
	l.wake.L = &l.mu
	l.turns = make(chan struct{}, 1)
	if l.sock, _ = nc.(*sys.SocketConn); l.sock == nil {
		l.turn = turnReceiver
	}
	// The watch says what is silent: it knows how long each part may wait.
	limits := stream.Limits{Idle: time.Minute, Total: time.Minute, Report: timeout / 4}
	l.in = stream.NewReader(nc, session, limits)
	l.out = stream.NewWriter(nc, session, limits, func() { l.wrote.Store(stream.Now()) })
	return l
}

// open opens the namespace, before anything else is sent.
func (l *link) open() error {
	l.table = l.peer.client.cfg.Namespace.Append(l.table[:0])
	status, reply, err := l.first(message.Open, message.OpenedBytes)
	if err == nil && status == message.Denied {
		return fmt.Errorf("%w: %s", errDenied, reply)
	}
	if err == nil && status.Refuses() {
		err = fmt.Errorf("the namespace was refused: %v %s", status, reply)
	}
	if err != nil {
		return err
	}
	if err := l.opened.Decode(reply); err != nil {
		return err
	}
	l.tags = tag.New(l.opened.TagKey.Mask(l.secret), l.peer.client.digest)
	l.maker, l.checker = l.tags.Clone(), l.tags.Clone()
	return nil
}

// first asks something of which the payload is l.table, and waits for the answer, of at most so many bytes.
func (l *link) first(code message.Code, most int) (status message.Status, reply []byte, err error) {
	said := message.Request{}
	l.head = wire.Head{Code: code, Extra: said.Encode(l.extra[:])}
	if err := l.out.Append(&l.head, [][]byte{l.table}); err != nil {
		return 0, nil, err
	}
	if err := l.out.Flush(); err != nil {
		return 0, nil, err
	}
	head, err := l.in.Next()
	if err != nil {
		return 0, nil, err
	}
	if head.Code != code || !head.Reply || head.PayloadBytes > int64(max(most, message.MaxTextBytes)) {
		return 0, nil, message.ErrMalformed
	}
	reply = make([]byte, head.PayloadBytes)
	if err := l.in.Read(reply); err != nil {
		return 0, nil, err
	}
	return message.Status(head.Status), reply, l.in.End()
}

// run serves the link until it has ended, and completes what it has left.
func (l *link) run() {
	done := make(chan struct{})
	safego.Go("store: sender", func() { defer close(done); l.send() }, func(err error) { l.fail(err) })
	if l.lacks != nil {
		l.peer.client.start("store: arena", l.shareLater)
	}
	over := make(chan struct{})
	safego.Go("store: end", func() { defer close(over); l.watchEnd() }, func(err error) { l.fail(err) })
	err := safego.Call("store: receiver", func() { l.fail(l.receive()) })
	l.fail(err)
	<-done
	<-over
	l.writing.Lock() // a submitter may be about to write
	defer l.writing.Unlock()
	l.shut = true
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.queue {
		t.complete()
	}
	for _, t := range l.running {
		t.complete()
	}
	l.queue, l.running = nil, nil
	l.closeView()
}

// complete ends a part; its memory is not used any more.
func (t *part) complete() {
	if t.call != nil {
		k := t.call
		t.call, t.bufs = nil, nil
		k.end()
	}
}

// fail ends the link; the first error counts.
func (l *link) fail(err error) {
	if err == nil {
		err = net.ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.gone)
		_ = l.nc.Close()
		l.offer()
		l.wake.Broadcast()
	}
}

func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *link) server() string { return l.peer.name }

// ask takes a part, unless the link has ended. Where nothing else runs it is sent at once
// if it is small: the socket has room then, so that this does not wait. So is a block that its caller waits for, and that
// the server copies from shared memory.
func (l *link) ask(t *part) bool {
	t.begun = stream.Now()
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return false
	}
	if len(l.running) > 0 || len(l.queue) > 0 || l.sending || t.bytes > smallPutBytes && !(t.call.sync && l.mayBounce(t)) {
		l.queue = append(l.queue, t)
		l.wake.Signal()
		l.mu.Unlock()
		return true
	}
	if t.alone && l.turn == turnNone {
		l.turn, t.call.reads = turnCaller, l
	}
	id := l.take(t)
	l.mu.Unlock()
	l.transmit(id, t, true)
	return true
}

const smallPutBytes = 8 << 10

// take makes a part one that runs.
func (l *link) take(t *part) uint64 {
	l.nextID++
	l.running[l.nextID] = t
	t.placed = l.placed(t)
	l.takeRoom(t)
	t.writing, l.sending = true, true
	l.offer()
	return l.nextID
}

// settle ends what take has begun, when the message was written, or sealed to be written with the next one.
func (l *link) settle(t *part, sealed bool, err error) {
	l.mu.Lock()
	t.writing, l.sending, l.sealed = false, false, sealed
	answered := t.answered
	if answered {
		l.giveRoom(t)
	}
	if sealed || len(l.queue) > 0 { // else the sender has nothing to do
		l.wake.Signal()
	}
	l.mu.Unlock()
	if answered {
		t.complete()
	}
	if err != nil {
		l.fail(err)
	}
}

// send is the writer: it sends what is queued, as much at a time as the server has granted.
func (l *link) send() {
	for {
		id, t, more := l.next()
		switch {
		case t != nil:
			l.transmit(id, t, !more)
		case l.cause() != nil:
			return
		default:
			l.flush()
		}
	}
}

// flush writes what was sealed: the part that was to follow has been given up.
func (l *link) flush() {
	l.writing.Lock()
	err := net.ErrClosed
	if !l.shut {
		err = l.out.Flush()
	}
	l.writing.Unlock()
	if err != nil {
		l.fail(err)
	}
}

// transmit writes the message of a part that was taken.
func (l *link) transmit(id uint64, t *part, flush bool) {
	l.writing.Lock()
	err := net.ErrClosed
	if !l.shut {
		if err = l.write(id, t); err == nil && l.mustAnnounce(t, flush) {
			flush = true
			err = l.out.Flush()
		}
	}
	l.writing.Unlock()
	l.settle(t, !flush, err)
}

// next waits for a part that may be sent; nil: the link has ended, or what was sealed is to be
// written. more: another one may be sent right after it.
func (l *link) next() (id uint64, t *part, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.err == nil && (len(l.queue) == 0 || l.sending || len(l.running) >= int(l.opened.Contexts)) {
		if l.sealed && !l.sending {
			l.sealed = false
			return 0, nil, false
		}
		l.wake.Wait()
	}
	if l.err != nil {
		return 0, nil, false
	}
	t, l.queue = l.queue[0], l.queue[1:]
	id = l.take(t)
	return id, t, len(l.queue) > 0 && len(l.running) < int(l.opened.Contexts)
}

// write seals the message of a part and writes it, or keeps it until the next Flush.
func (l *link) write(id uint64, t *part) error {
	said := l.say(t)
	l.head = wire.Head{Code: t.code, Request: id, Extra: said.Encode(l.extra[:])}
	l.pieces = append(l.pieces[:0], l.table)
	if t.code == message.Put && !t.bounced {
		l.pieces = append(l.pieces, t.bufs[0]...)
		l.head.ApartBytes = uint32(t.bytes) // it has a tag
	}
	err := l.out.Append(&l.head, l.pieces)
	clear(l.pieces)
	return err
}

// say is what the header of a part's message says. The table is what goes before a block.
func (l *link) say(t *part) message.Request {
	said := message.Request{Namespace: l.opened.Namespace, NumKeys: uint16(len(t.keys)), DeadlineUs: micros(t.timeout)}
	if t.placed {
		said.Flags = message.FlagPlace
	}
	l.table = l.table[:0]
	if t.code == message.Put {
		key := t.keys[0]
		said.NumKeys, said.KeyBytes, said.Parent, said.Bytes = 0, uint16(len(key)), uint16(len(t.parent)), uint32(t.bytes)
		if t.bounced {
			l.bounceOff(t, &said)
		} else {
			said.Tag = l.maker.Of(key, t.bufs[0]...)
		}
		l.table = append(append(l.table, key...), t.parent...)
		return said
	}
	switch t.code {
	case message.Lookup:
		said.DeadlineUs = micros(t.hold)
	case message.Pin:
		said.Handle = uint64(t.hold / time.Microsecond)
	case message.Bad:
		said.DeadlineUs, said.Tag = 0, t.tag // it takes as long as the server looks at a block
	}
	for _, k := range t.keys {
		l.table = message.AppendKey(l.table, k)
	}
	if t.ask != nil {
		t.ask.fill(&said)
		l.table = append(l.table, t.ask.payload...)
	}
	return said
}

func micros(d time.Duration) uint32 {
	return uint32(min(int64(d/time.Microsecond), 1<<32-1))
}
