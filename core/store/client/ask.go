package client

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/pool"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// errNoAnswer means that the server is gone or was too slow.
var errNoAnswer = errors.New("no answer")

// ask is a request to one server that is answered by bytes.
type ask struct {
	said    message.Request // what is not of every request
	payload []byte
	most    int // bytes of the answer

	via      *link // that has answered
	answered bool
	placed   bool // the answer says where blocks lie
	status   message.Status
	answer   []byte
}

// fill adds what is asked for to a request.
func (a *ask) fill(said *message.Request) {
	said.Bytes, said.Handle, said.Offset = a.said.Bytes, a.said.Handle, a.said.Offset
	said.KeyBytes, said.Parent = a.said.KeyBytes, a.said.Parent
	said.NumKeys = max(said.NumKeys, a.said.NumKeys)
}

// answer reads the reply to an ask. One that is too long is no answer, and no reason to end the link.
func (l *link) answer(head *wire.Head, t *part) error {
	status, most := message.Status(head.Status), t.ask.most
	if head.Refused {
		most = message.MaxTextBytes
	}
	var b []byte
	if head.PayloadBytes <= int64(most) {
		b = make([]byte, head.PayloadBytes)
		if err := l.in.Read(b); err != nil {
			return err
		}
	} else {
		status, b = message.Failed, fmt.Appendf(nil, "the answer has %d bytes; allowed: %d", head.PayloadBytes, most)
	}
	if err := l.in.End(); err != nil {
		return err
	}
	if t.call != nil {
		t.ask.via, t.ask.answered, t.ask.status, t.ask.answer = l, true, status, b
		t.ask.placed = t.placed
	}
	return nil
}

// asked is a server, or one connection to it.
type asked interface {
	ask(t *part) bool
	server() string
}

// question is an ask on its way to a server.
type question struct {
	to   asked
	ask  *ask
	code message.Code
	call *call // nil: it was not sent
	err  error // why not
}

// one asks one server and waits. The error says why there is no answer, or none that serves.
func (c *Client) one(p asked, t *part, timeout time.Duration) ([]byte, error) {
	return c.send(p, t, c.timeoutOf(timeout), time.Now()).answer()
}

// timeoutOf is a timeout that a call was given; 0: that of the client.
func (c *Client) timeoutOf(timeout time.Duration) time.Duration {
	if timeout == 0 {
		return c.cfg.Timeout
	}
	return timeout
}

// send sends an ask. At the cap it waits for a place, until the timeout has passed since a call of several asks began: so servers
// that hang hold up the asks of the others once.
func (c *Client) send(p asked, t *part, timeout time.Duration, began time.Time) question {
	q := question{to: p, ask: t.ask, code: t.code}
	place, err := c.place(began.Add(timeout))
	switch {
	case errors.Is(err, pool.ErrClosed):
		q.err = ErrClosed
		return q
	case err != nil:
		c.counts.Capped.Add(1)
		q.err = ErrWouldBlock
		return q
	}
	q.call = &call{client: c, op: t.code, place: place, sync: true, ended: make(chan struct{})}
	q.call.left.Store(1)
	t.call, t.timeout = q.call, timeout
	if !p.ask(t) {
		c.counts.Unreachable.Add(1)
		t.complete()
	}
	c.wakeWatch()
	return q
}

// answer waits for the answer.
func (q question) answer() ([]byte, error) {
	if q.err != nil {
		return nil, q.err
	}
	<-q.call.ended
	switch a := q.ask; {
	case q.call.Err != nil:
		return nil, q.call.Err
	case !a.answered:
		return nil, fmt.Errorf("%s: %w", q.to.server(), errNoAnswer)
	case a.status.Refuses():
		a.via.refused(a.status, q.code)
		return nil, fmt.Errorf("%s: %v %s", q.to.server(), a.status, a.answer)
	}
	return q.ask.answer, nil
}

// askAll asks every server, all of them before it waits for the first answer.
func (c *Client) askAll(code message.Code, most int, timeout time.Duration) []question {
	sent, began := make([]question, len(c.peers)), time.Now()
	for i, p := range c.peers {
		sent[i] = c.send(p, &part{code: code, ask: &ask{most: most}}, c.timeoutOf(timeout), began)
	}
	return sent
}

// Flush returns once all servers that can be reached have on their disks what was stored
// before. The error names those that do not.
func (c *Client) Flush(timeout time.Duration) error {
	var errs []error
	for _, q := range c.askAll(message.Flush, 0, timeout) {
		_, err := q.answer()
		errs = append(errs, err)
	}
	if c.isClosed() {
		return ErrClosed
	}
	return errors.Join(errs...)
}

// Stats are what each server says of itself, as JSON; nil for one that says nothing. All of them are asked at once.
// The timeout is how long one may be silent; 0: Config.Timeout.
func (c *Client) Stats(timeout time.Duration) map[string][]byte {
	all := map[string][]byte{}
	for i, q := range c.askAll(message.Stats, message.MaxStatsBytes, timeout) {
		said, err := q.answer()
		if err != nil {
			said = nil
		}
		all[c.peers[i].name] = said
	}
	return all
}

// List calls f with the keys that begin with a prefix, until it returns false: those of one
// server after the other. The timeout is for each part of the list; 0: Config.Timeout. A server that does not answer is
// left out and named in the error.
func (c *Client) List(prefix []byte, timeout time.Duration, f func(key []byte) bool) error {
	if len(prefix) > message.MaxKeyBytes {
		return fmt.Errorf("%w: the prefix has %d bytes; allowed: %d", ErrArgument, len(prefix), message.MaxKeyBytes)
	}
	var errs []error
	for _, p := range c.peers {
		on, err := c.listOf(p, prefix, timeout, f)
		errs = append(errs, err)
		if !on {
			break
		}
	}
	return errors.Join(errs...)
}

func (c *Client) listOf(p *peer, prefix []byte, timeout time.Duration, f func(key []byte) bool) (on bool, err error) {
	for cursor := []byte(nil); ; {
		keys, next, err := c.pageOf(p, prefix, cursor, timeout)
		if err != nil {
			return true, err
		}
		for _, k := range keys {
			if !f(bytes.Clone(k)) {
				return false, nil
			}
		}
		if len(next) == 0 {
			return true, nil
		}
		cursor = next
	}
}
