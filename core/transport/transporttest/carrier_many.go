package transporttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// carrierWake: a Wake is never lost, whenever it comes.
func carrierWake(c *carrierTest) {
	c.start(1)
	t := c.transports[0]
	wait := func(what string) {
		start := time.Now()
		if err := t.Wait(c.timeout); err != nil {
			c.Fatalf("wait: %v", err)
		}
		if time.Since(start) > c.timeout/2 {
			c.Fatalf("%s: a Wake was lost", what)
		}
	}
	t.Wake()
	wait("Wake before Wait")
	if err := t.Wait(time.Millisecond); err != nil { // ends by itself
		c.Fatal(err)
	}
	ball := make(chan struct{})
	var players sync.WaitGroup
	defer players.Wait()
	defer close(ball)
	players.Go(func() {
		for range ball {
			t.Wake()
		}
	})
	for i := range 500 {
		ball <- struct{}{}
		wait(fmt.Sprintf("Wake %d at any time", i))
	}
}

// carrierWaitSeesCompletions sleeps before every completion.
func carrierWaitSeesCompletions(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	t := c.transports[1]
	for range 300 {
		id := b.recv(nil)
		a.send(transport.SendRequest{Op: transport.OpSend})
		start := time.Now()
		for n := 0; n == 0; {
			if err := t.Wait(c.timeout); err != nil {
				c.Fatalf("wait: %v", err)
			}
			if time.Since(start) > c.timeout/2 {
				c.Fatal("a completion did not end a Wait")
			}
			var err error
			if n, err = t.Poll(c.completions); err != nil {
				c.Fatalf("poll: %v", err)
			}
			for _, done := range c.completions[:n] {
				c.enter(1, done)
			}
		}
		b.awaitOK(id, 0)
		c.until("the send has ended, too", func() bool { return a.outstanding() == 0 })
	}
}

// carrierManyEndpoints connects every transport with every other, more than once.
func carrierManyEndpoints(c *carrierTest) {
	const hosts, lanes, messages = 4, 3, 5
	c.start(hosts)
	var inboxes []*inbox
	for i := range hosts {
		for j := range i {
			for range lanes {
				a, b := c.pair(i, j)
				inboxes = append(inboxes, c.inbox(a, messages), c.inbox(b, messages))
			}
		}
	}
	for k, in := range inboxes {
		from := inboxes[k^1].end // the other end of the pair
		m := c.memory(from.at, 8*messages, 0)
		for i := range messages {
			binary.LittleEndian.PutUint64(m.mem[8*i:], uint64(k)<<32|uint64(i))
			from.send(transport.SendRequest{Op: transport.OpSend, Local: m.pieces(8*i, 8)})
		}
		in.want = uint64(k) << 32
	}
	c.until("all messages have arrived", func() bool {
		for _, in := range inboxes {
			if in.end.outstanding() > 0 {
				return false
			}
		}
		return true
	})
	for _, in := range inboxes {
		in.check(c, messages)
	}
}

// inbox receives words of one endpoint.
type inbox struct {
	end  *end
	m    *memory
	want uint64
}

func (c *carrierTest) inbox(e *end, words int) *inbox {
	in := &inbox{end: e, m: c.memory(e.at, 8*words, 0)}
	for i := range words {
		e.recv(in.m.pieces(8*i, 8))
	}
	return in
}

// check finds each word once, in any order.
func (in *inbox) check(c *carrierTest, words int) {
	seen := map[uint64]bool{}
	for i := range words {
		seen[binary.LittleEndian.Uint64(in.m.mem[8*i:])] = true
	}
	for i := range words {
		if !seen[in.want+uint64(i)] {
			c.Errorf("message %#x is not among those of its endpoint: %v", in.want+uint64(i), seen)
		}
	}
}

// carrierMixture runs random requests both ways and keeps a copy of what the
// peer's memory must hold.
func carrierMixture(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	x, y := newMixer(c, a, 1), newMixer(c, b, 0)
	r := c.rand()
	for n := 0; n < 1000; {
		m, other := x, y
		if r.IntN(2) == 0 {
			m, other = y, x
		}
		if k := r.IntN(mixSlots); m.busy[k] == 0 {
			m.start(k, other, r.IntN(4), r.IntN(mixBytes+1), r.Uint64())
			n++
		}
		c.poll()
		x.harvest()
		y.harvest()
	}
	c.until("all have ended", func() bool {
		x.harvest()
		y.harvest()
		return x.numBusy()+y.numBusy() == 0
	})
	x.remote.want(c, "writes of the first", x.model)
	y.remote.want(c, "writes of the second", y.model)
}

const (
	mixSlots = 8
	mixBytes = 600
)

// mixer is one side's requests: slot k of its memory, and of its window at the
// peer, belongs to at most one of them.
type mixer struct {
	c      *carrierTest
	e      *end
	local  *memory
	remote *memory // at the peer
	inbox  *memory // for sends of the peer
	model  []byte  // of remote
	busy   [mixSlots]uint64
	checks [mixSlots]func()
}

func newMixer(c *carrierTest, e *end, peer int) *mixer {
	m := &mixer{
		c: c, e: e, local: c.memory(e.at, mixSlots*mixBytes, 0),
		remote: c.memory(peer, mixSlots*mixBytes, transport.AccessRead|transport.AccessWrite),
		inbox:  c.memory(e.at, mixBytes, 0), model: make([]byte, mixSlots*mixBytes),
	}
	return m
}

// start posts a request of n bytes with slot k, or does nothing where there is
// no room.
func (m *mixer) start(k int, other *mixer, kind, n int, tag uint64) {
	off := k * mixBytes
	op := transport.OpSend + transport.Opcode(kind)
	slot := m.local.mem[off : off+n]
	want := m.c.filled(n, tag)
	model := m.model[off : off+n]
	if op == transport.OpRead {
		want = bytes.Clone(model)
	}
	copy(slot, want)
	if op == transport.OpRead {
		clear(slot)
	}
	if op == transport.OpSend || op == transport.OpWriteImm {
		if !m.postPeerReceive(other) {
			return
		}
	}
	m.busy[k] = m.e.send(transport.SendRequest{
		Op: op, Local: m.local.pieces(off, n), Remote: m.remote.region.Remote(), RemoteOff: uint64(off), Imm: uint32(k),
	})
	m.checks[k] = func() {
		if !bytes.Equal(slot, want) {
			m.c.Errorf("operation %d of %d bytes: the local bytes are not those expected", op, n)
		}
		if op == transport.OpWrite || op == transport.OpWriteImm {
			copy(model, want)
		}
	}
}

// postPeerReceive posts a receive at the peer for what is about to be sent.
func (m *mixer) postPeerReceive(other *mixer) bool {
	_, err := other.e.tryRecv(other.inbox.pieces(0, mixBytes))
	if err != nil && !errors.Is(err, transport.ErrWouldBlock) {
		m.c.Fatalf("post recv: %v", err)
	}
	return err == nil
}

func (m *mixer) harvest() {
	for k, id := range m.busy {
		done, ended := m.e.done[id]
		if id == 0 || !ended {
			continue
		}
		if done.Status != transport.StatusOK {
			m.c.Fatalf("failed: %+v", done)
		}
		m.checks[k]()
		m.busy[k] = 0
	}
}

func (m *mixer) numBusy() int {
	n := 0
	for _, id := range m.busy {
		if id != 0 {
			n++
		}
	}
	return n
}

// carrierConcurrent posts from many goroutines, beside a poller, and retires
// one endpoint in the middle.
func carrierConcurrent(c *carrierTest) {
	c.start(2)
	const lanes, messages = 4, 100
	var posters sync.WaitGroup
	defer posters.Wait()
	ended := make(chan struct{})
	for k := range lanes {
		a, b := c.pair(0, 1)
		postLane(&posters, a, b, messages)
		if k == 0 {
			posters.Go(func() {
				time.Sleep(2 * time.Millisecond)
				if err := errors.Join(a.ep.Retire(), b.ep.Retire()); err != nil {
					c.Errorf("retire: %v", err)
				}
			})
		}
	}
	m, free := c.rawMemory(4096)
	posters.Go(func() { registerMany(c, m) })
	go func() { posters.Wait(); close(ended) }()
	c.until("all is posted", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	free()
	for _, e := range c.ends[2:] {
		c.until("all has ended", func() bool { return e.outstanding() == 0 })
		if len(e.done) != messages {
			c.Errorf("%d of %d have ended", len(e.done), messages)
		}
	}
}

// postLane has one goroutine post receives at b, and another one as many sends at a.
func postLane(posters *sync.WaitGroup, a, b *end, messages int) {
	received := make(chan struct{}, messages) // no send comes before its receive
	posters.Go(func() {
		defer close(received)
		b.postMany(messages, func() error {
			_, err := b.tryRecv(nil)
			if err == nil {
				received <- struct{}{}
			}
			return err
		})
	})
	posters.Go(func() {
		for range received {
			a.postMany(1, func() error {
				_, err := a.trySend(transport.SendRequest{Op: transport.OpSend})
				return err
			})
		}
	})
}

// postMany posts n requests, however long it takes.
func (e *end) postMany(n int, post func() error) {
	for deadline := time.Now().Add(e.c.timeout); n > 0; {
		err := post()
		switch {
		case err == nil:
			n--
		case !errors.Is(err, transport.ErrWouldBlock) || time.Now().After(deadline):
			e.c.Errorf("post: %v, %d to go", err, n)
			return
		default:
			time.Sleep(50 * time.Microsecond)
		}
	}
}

func registerMany(c *carrierTest, m []byte) {
	for range 50 {
		r, err := c.transports[0].Register(m, transport.AccessWrite)
		if err == nil {
			err = r.Close()
		}
		if err != nil {
			c.Errorf("register and close: %v", err)
		}
	}
}
