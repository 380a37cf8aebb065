package client

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	uatomic "go.uber.org/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/pool"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/tag"
)

// Request is what may be submitted. Everything in it is by position.
type Request struct {
	// Op is message.Put, Get, Exists, Delete, Touch or Pin.
	Op message.Code
	// Keys are a chain in order, the beginning of a prompt first. They are copied, but by Do, during which they
	// must not change.
	Keys [][]byte
	// Parent is the key before the first one, if any.
	Parent []byte
	// Buffers are where each block lies or goes, in pieces. They are the caller's again at
	// the completion. A get without them gets memory of its own.
	Buffers [][][]byte
	// For is how long Pin holds.
	For time.Duration
	// Timeout is how long no byte may come or go; 0: Config.Timeout.
	Timeout time.Duration
}

// Completion says how a request fared, by position.
type Completion struct {
	ID uint64
	OK []bool
	// Lengths are those of the blocks: -1 for a miss. A block for which the buffers have no
	// room has its length and is not OK.
	Lengths []int
	Data    [][]byte // of a get without buffers
	Err     error    // the client was closed
	// TooLarge is what a server has said of the first block of a put that none of its segments holds, with both
	// numbers; "": none is so large. The server's words in it are not trusted.
	TooLarge string
}

// call is a request that runs.
type call struct {
	Completion
	client *Client
	op     message.Code
	place  pool.Lease[struct{}]
	sync   bool
	reads  *link // at which the caller reads the reply by itself; nil: none
	ended  chan struct{}
	left   atomic.Int32 // parts

	tooLarge uatomic.String // the first one
}

// part is what one message asks of one server.
type part struct {
	call    *call // nil: given up, or of no call
	code    message.Code
	at      []int // positions of the keys in the call
	keys    [][]byte
	parent  []byte
	bufs    [][][]byte
	bytes   int  // put
	bounced bool // put: the server copies its block from room, which is at offset of the bounce buffer
	room    []byte
	offset  int64
	tag     tag.Tag       // bad: that the server has said
	hold    time.Duration // pin, lookup
	timeout time.Duration

	alone            bool  // the caller waits for it and for no other one
	begun            int64 // on the clock of stream.Now
	writing, reading bool  // its memory is in use
	answered         bool  // while it was being written

	next, off int      // get: what the next message of the reply is about
	gave      [][]byte // memory that was made for what is got
	ask       *ask     // what is of one server

	placed bool // the reply says where blocks lie
	again  bool // get: blocks that were not any more where they had been
}

func (c *Client) check(r *Request) error {
	n := len(r.Keys)
	if n == 0 || n > message.MaxKeys {
		return fmt.Errorf("%w: %d keys given; allowed: 1 to %d", ErrArgument, n, message.MaxKeys)
	}
	for i, k := range r.Keys {
		if !message.CheckKey(k) {
			return fmt.Errorf("%w: key %d has %d bytes; allowed: 1 to %d", ErrArgument, i, len(k), message.MaxKeyBytes)
		}
	}
	if len(r.Parent) > message.MaxKeyBytes {
		return fmt.Errorf("%w: the parent has %d bytes; allowed: %d", ErrArgument, len(r.Parent), message.MaxKeyBytes)
	}
	if r.Timeout < 0 || r.For < 0 {
		return fmt.Errorf("%w: a time is negative", ErrArgument)
	}
	switch r.Op {
	case message.Put:
		return checkBuffers(r)
	case message.Get:
		if r.Buffers != nil && len(r.Buffers) != n {
			return fmt.Errorf("%w: %d buffers given for %d keys", ErrArgument, len(r.Buffers), n)
		}
		return nil
	case message.Exists, message.Delete, message.Touch, message.Pin:
		return nil
	}
	return fmt.Errorf("%w: operation %#x", ErrArgument, r.Op)
}

func checkBuffers(r *Request) error {
	if len(r.Buffers) != len(r.Keys) {
		return fmt.Errorf("%w: %d buffers given for %d keys", ErrArgument, len(r.Buffers), len(r.Keys))
	}
	total := 0
	for i, b := range r.Buffers {
		n := size(b)
		if n > message.MaxBlockBytes {
			return fmt.Errorf("%w: block %d has %d bytes; allowed: %d", ErrArgument, i, n, message.MaxBlockBytes)
		}
		total += n
	}
	if total > message.MaxBatchBytes && len(r.Keys) > 1 {
		return fmt.Errorf("%w: the blocks have %d bytes together; allowed: %d, or one block", ErrArgument, total, message.MaxBatchBytes)
	}
	return nil
}

func size(pieces [][]byte) (n int) {
	for _, p := range pieces {
		n += len(p)
	}
	return n
}

// Submit begins a request, or returns an error and does nothing: ErrWouldBlock if as many requests run, or were
// submitted and not drained, as may.
func (c *Client) Submit(r Request) (uint64, error) {
	if err := c.check(&r); err != nil {
		return 0, err
	}
	place, err := c.places.Get()
	if err != nil {
		return 0, c.busy()
	}
	k := c.newCall(&r, place)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		_ = c.places.Put(place)
		return 0, ErrClosed
	}
	if len(c.calls) >= c.cfg.Requests { // most of them have ended, and were not drained
		c.mu.Unlock()
		_ = c.places.Put(place)
		return 0, c.busy()
	}
	c.nextID++
	k.ID = c.nextID
	c.calls[k.ID] = k
	c.mu.Unlock()
	c.begin(k, &r)
	return k.ID, nil
}

func (c *Client) busy() error {
	if c.isClosed() {
		return ErrClosed
	}
	c.counts.Capped.Add(1)
	return ErrWouldBlock
}

func (c *Client) newCall(r *Request, place pool.Lease[struct{}]) *call {
	n := len(r.Keys)
	k := &call{client: c, op: r.Op, place: place, ended: make(chan struct{})}
	k.OK, k.Lengths = make([]bool, n), make([]int, n)
	for i := range k.Lengths {
		k.Lengths[i] = -1
	}
	if r.Op == message.Get && r.Buffers == nil {
		k.Data = make([][]byte, n)
	}
	return k
}

// begin spreads a call over the servers.
func (c *Client) begin(k *call, r *Request) {
	timeout := r.Timeout
	if timeout == 0 {
		timeout = c.cfg.Timeout
	}
	parts := c.split(k, r)
	k.left.Store(int32(len(parts)))
	for _, p := range parts {
		p.timeout, p.hold, p.alone = timeout, r.For, k.sync && len(parts) == 1
		c.peers[c.serverOf(p.keys[0])].submit(p)
	}
	c.watchFor(timeout)
}

// split makes a part of each block to be put, else of the keys of each server.
func (c *Client) split(k *call, r *Request) []*part {
	if r.Op == message.Put {
		return c.puts(k, r)
	}
	keys := k.keysOf(r)
	if len(c.peers) == 1 {
		return []*part{{call: k, code: r.Op, at: positions[:len(keys)], keys: keys, bufs: r.Buffers}}
	}
	byServer := make([]*part, len(c.peers))
	var parts []*part
	for i, key := range keys {
		at := c.serverOf(key)
		p := byServer[at]
		if p == nil {
			p = &part{call: k, code: r.Op}
			byServer[at] = p
			parts = append(parts, p)
		}
		p.at = append(p.at, i)
		p.keys = append(p.keys, key)
		if r.Buffers != nil {
			p.bufs = append(p.bufs, r.Buffers[i])
		}
	}
	return parts
}

// positions are 0, 1, 2, ...: those of the keys of a part that has all of a call. Never written.
var positions = func() (all [message.MaxKeys]int) {
	for i := range all {
		all[i] = i
	}
	return all
}()

// keysOf are the keys of a call's parts: copies, unless the caller waits. A lookup has no call.
func (k *call) keysOf(r *Request) [][]byte {
	if k != nil && k.sync {
		return r.Keys
	}
	return cloned(r.Keys)
}

// noKeys are those of a part that was given up: its call's may be the caller's memory. Never written.
var noKeys [message.MaxKeys][]byte

// cloned is a copy of keys, in one piece of memory.
func cloned(keys [][]byte) [][]byte {
	room, out := make([]byte, 0, size(keys)), make([][]byte, len(keys))
	for i, key := range keys {
		at := len(room)
		room = append(room, key...)
		out[i] = room[at:len(room):len(room)]
	}
	return out
}

// puts names as the parent of each block the last one before it that is at the same server: no other one can be known there.
func (c *Client) puts(k *call, r *Request) []*part {
	parts, parents := make([]*part, len(r.Keys)), make([][]byte, len(c.peers))
	if len(r.Parent) > 0 {
		parents[c.serverOf(r.Parent)] = slices.Clone(r.Parent)
	}
	for i, key := range k.keysOf(r) {
		at := c.serverOf(key)
		parts[i] = &part{
			call: k, code: r.Op, at: []int{i}, keys: [][]byte{key}, parent: parents[at],
			bufs: [][][]byte{r.Buffers[i]}, bytes: size(r.Buffers[i]),
		}
		parents[at] = key
	}
	return parts
}

// end is one part less.
func (k *call) end() {
	if k.left.Add(-1) == 0 {
		k.client.finish(k)
	}
}

func (c *Client) finish(k *call) {
	if c.isClosed() {
		k.Err = ErrClosed
	}
	k.TooLarge = k.tooLarge.Load()
	_ = c.places.Put(k.place)
	if !k.sync {
		c.mu.Lock()
		c.done = append(c.done, k)
		if len(c.done) == 1 && !c.closed {
			_ = sys.Signal(c.event)
		}
		c.mu.Unlock()
	}
	close(k.ended)
}

// Drain appends the completions that there are to dst.
func (c *Client) Drain(dst []Completion) []Completion {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.done) == 0 {
		return dst
	}
	for _, k := range c.done {
		dst = append(dst, k.Completion)
		delete(c.calls, k.ID)
	}
	c.done = c.done[:0]
	if !c.closed {
		_ = sys.Unsignal(c.event)
	}
	return dst
}

// Next takes one completion, the oldest; false: there is none. EventFD stays readable while there are others.
func (c *Client) Next() (Completion, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.done) == 0 {
		return Completion{}, false
	}
	k := c.done[0]
	c.take(k)
	return k.Completion, true
}

// take takes a call that has ended out of what there is to drain. The caller holds mu.
func (c *Client) take(k *call) {
	delete(c.calls, k.ID)
	c.done = slices.DeleteFunc(c.done, func(other *call) bool { return other == k })
	if len(c.done) == 0 && !c.closed {
		_ = sys.Unsignal(c.event)
	}
}

// Wait waits for one request, and takes its completion out of what Drain gives.
func (c *Client) Wait(id uint64, deadline time.Time) (Completion, error) {
	c.mu.Lock()
	k := c.calls[id]
	c.mu.Unlock()
	if k == nil {
		return Completion{}, fmt.Errorf("%w: request %d given; allowed: one that was submitted and not drained", ErrArgument, id)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-k.ended:
	case <-timer.C:
		return Completion{}, ErrDeadline
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[id] == nil {
		return Completion{}, fmt.Errorf("%w: request %d was drained meanwhile", ErrArgument, id)
	}
	c.take(k)
	return k.Completion, nil
}
