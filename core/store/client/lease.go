package client

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/tag"
)

// Lease is a block that a server keeps until End, Release, the end of its time or of the
// connection. Safe for concurrent use.
type Lease struct {
	client *Client
	link   *link // its handles are those of the connection
	handle uint64
	key    []byte
	bytes  int
	tag    tag.Tag
	over   atomic.Bool
	// timeout is that of the lookup, for what is asked of the lease later
	timeout time.Duration

	view  *local.View // where the block lies, if that can be read; until Release
	place int64
	until time.Time // a view: when the server ends the lease, at the earliest
	given atomic.Bool
}

// Lookup leases blocks for a time, which the server may shorten: 0 is what it likes. By
// position; nil is a miss. All servers are asked at once. The timeout is without progress, and of what is asked of the
// leases later; 0: Config.Timeout.
func (c *Client) Lookup(keys [][]byte, hold, timeout time.Duration) ([]*Lease, error) {
	r := Request{Op: message.Exists, Keys: keys, For: hold, Timeout: timeout}
	if err := c.check(&r); err != nil {
		return nil, err
	}
	leases, parts := make([]*Lease, len(keys)), c.split(nil, &r)
	asks := make([]lookup, len(parts))
	for i, began := 0, time.Now(); i < len(parts); i++ {
		asks[i] = c.sendLookup(parts[i], &r, began)
	}
	for i := range asks {
		if err := asks[i].take(leases); err != nil && c.isClosed() {
			Forget(leases)
			return nil, ErrClosed
		}
	}
	return leases, nil
}

// lookup is what was asked of one server for its keys.
type lookup struct {
	question
	client  *Client
	keys    [][]byte
	at      []int // positions of the keys in the call
	request *Request
	asked   time.Time
}

func (c *Client) sendLookup(t *part, r *Request, began time.Time) lookup {
	l := lookup{client: c, keys: t.keys, at: t.at, request: r, asked: time.Now()}
	t.code, t.ask, t.hold = message.Lookup, &ask{most: len(t.keys) * message.PlacedBytes}, r.For
	l.question = c.send(c.peers[c.serverOf(t.keys[0])], t, c.timeoutOf(r.Timeout), began)
	return l
}

// take waits for the answer, and puts leases where their keys are. No answer is a miss.
func (l *lookup) take(leases []*Lease) error {
	said, err := l.answer()
	if err != nil {
		l.client.counts.Misses.Add(uint64(len(l.keys)))
		return err
	}
	size := message.LookupBytes
	if l.ask.placed {
		size = message.PlacedBytes
	}
	if len(said) != len(l.keys)*size {
		return message.ErrMalformed
	}
	for i, at := range l.at {
		if leases[at], err = l.lease(i, said[i*size:(i+1)*size]); err != nil {
			return err
		}
	}
	return nil
}

// lease is that of a key, by its entry of the answer; nil is a miss.
func (l *lookup) lease(i int, entry []byte) (*Lease, error) {
	one := &Lease{client: l.client, link: l.ask.via, key: bytes.Clone(l.keys[i]), timeout: l.request.Timeout}
	found, err := one.decode(entry, l.asked, l.request.For)
	if err != nil || !found {
		l.client.counts.Misses.Add(1)
		return nil, err
	}
	l.client.counts.Hits.Add(1)
	return one, nil
}

// decode reads an entry of the reply to a lookup.
func (l *Lease) decode(b []byte, asked time.Time, hold time.Duration) (found bool, err error) {
	var e message.Entry
	var place uint64
	if len(b) == message.PlacedBytes {
		place, err = e.DecodePlaced(b, l.link.arenaBytes)
	} else {
		err = e.Decode(b)
	}
	if err != nil || e.Status != message.OK {
		return false, err
	}
	l.handle, l.bytes, l.tag = e.Handle, int(e.Bytes), e.Tag
	if len(b) == message.PlacedBytes && l.link.view.Hold() {
		if hold == 0 || hold > l.link.hold {
			hold = l.link.hold
		}
		l.view, l.place, l.until = l.link.view, int64(place), asked.Add(hold)
	}
	return true, nil
}

// Bytes is the length of the block.
func (l *Lease) Bytes() int { return l.bytes }

// Read reads the whole block into pieces that have room for it, and compares its tag. false:
// the lease is over, the server is gone, or the bytes are wrong, which is counted.
func (l *Lease) Read(pieces [][]byte) (bool, error) {
	if size(pieces) < l.bytes {
		return false, fmt.Errorf("%w: buffers of %d bytes given for a block of %d", ErrArgument, size(pieces), l.bytes)
	}
	if l.copyTo(pieces) {
		return true, nil
	}
	tagger := l.link.tags.Clone()
	tagger.Begin(l.key, l.bytes)
	dst := slices.Clone(pieces)
	for off := 0; off < l.bytes; {
		n := min(l.bytes-off, message.PartBytes)
		a := &ask{most: n}
		a.said.Handle, a.said.Offset, a.said.Bytes = l.handle, uint64(off), uint32(n)
		said, err := l.ask(message.Read, a)
		if err != nil || len(said) != n {
			return false, l.closed()
		}
		tagger.Write(said)
		dst = fillPieces(dst, said)
		off += n
	}
	if tagger.Tag() != l.tag {
		l.client.counts.BadTags.Add(1)
		l.link.complain(l.key, l.tag)
		return false, nil
	}
	return true, nil
}

// closed is an error if the client is closed: everything else is a miss.
func (l *Lease) closed() error {
	if l.client.isClosed() {
		return ErrClosed
	}
	return nil
}

// ask asks by way of the link that the lease is of.
func (l *Lease) ask(code message.Code, a *ask) ([]byte, error) {
	if l.over.Load() {
		return nil, errNoAnswer
	}
	return l.client.one(l.link, &part{code: code, ask: a}, l.timeout)
}

// End ends the lease, and reports whether the server has kept the block until now. false: it has
// not, or does not answer. Idempotent: a later call says false.
func (l *Lease) End() bool {
	if l.over.Swap(true) {
		return false
	}
	a := &ask{payload: message.AppendHandle(nil, l.handle), most: message.FoundBytes(1)}
	a.said.NumKeys = 1
	said, err := l.client.one(l.link, &part{code: message.Release, ask: a}, l.timeout)
	if err != nil {
		return false
	}
	var kept [1]bool
	_, err = message.Found(said, kept[:])
	return err == nil && kept[0]
}

// Release ends the lease, if End has not, and what it has of the server's arena. Idempotent.
func (l *Lease) Release() {
	l.End()
	l.Forget()
}

// ReleaseAll is Release of the leases of one lookup; nil is none. Each server is asked once.
func (c *Client) ReleaseAll(leases []*Lease) {
	defer Forget(leases)
	asks := map[*link]*ask{}
	timeout := c.cfg.Timeout
	for _, l := range leases {
		if l == nil || l.over.Swap(true) {
			continue
		}
		if asks[l.link] == nil {
			asks[l.link] = &ask{}
		}
		a := asks[l.link]
		a.payload = message.AppendHandle(a.payload, l.handle)
		a.said.NumKeys++
		a.most, timeout = message.FoundBytes(int(a.said.NumKeys)), c.timeoutOf(l.timeout)
	}
	sent, began := make([]question, 0, len(asks)), time.Now()
	for via, a := range asks {
		sent = append(sent, c.send(via, &part{code: message.Release, ask: a}, timeout, began))
	}
	for _, q := range sent {
		_, _ = q.answer() // without one they end with their time, or the connection
	}
}

// Forget gives up what the lease has of the server's arena, and leaves its end to its time. Idempotent.
func (l *Lease) Forget() {
	if l.view != nil && !l.given.Swap(true) {
		l.view.Release()
	}
}

// Forget forgets leases; nil is none.
func Forget(leases []*Lease) {
	for _, l := range leases {
		if l != nil {
			l.Forget()
		}
	}
}

// fillPieces copies b to the beginning of pieces and returns what is left of them.
func fillPieces(pieces [][]byte, b []byte) [][]byte {
	for len(b) > 0 {
		n := copy(pieces[0], b)
		pieces[0], b = pieces[0][n:], b[n:]
		if len(pieces[0]) == 0 {
			pieces = pieces[1:]
		}
	}
	return pieces
}
