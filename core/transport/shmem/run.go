package shmem

import (
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// How much one call does. Every request counts as requestBytes on top. A chunk
// is what Go copies past the caches: of large requests, smaller chunks took
// twice as long.
const (
	chunkBytes   = 1 << 20 // copied at once, between two looks at the peer
	postBytes    = 1 << 20 // copied by PostSend, and rounded up to a chunk
	pollBytes    = 1 << 20 // the same by Poll
	requestBytes = 1 << 10
)

// Completion.Vendor of this carrier: why a request was refused.
const (
	vendorNone     = iota
	VendorRegion   // no such region, or not these bytes, or not this access
	VendorNonsense // the peer breaks the rules
	VendorTooShort // the peer's receive is shorter than what was sent
)

// progress runs the endpoint's requests, as far as a budget of bytes goes, and returns
// what it has used. If another goroutine is running them, that goroutine looks once more.
func (e *Endpoint) progress(budget int) (spent int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		e.again = true
		return 0
	}
	e.running = true
	for e.again = true; e.again && spent < budget; {
		e.again = false
		e.look()
		spent += e.run(budget - spent)
	}
	e.running = false
	if e.again || spent >= budget {
		e.toRun()
	}
	return spent
}

// look takes in what the peer has done. Under the lock, running.
func (e *Endpoint) look() {
	if e.peer == nil {
		return
	}
	e.peer.update()
	if e.State() >= transport.StateError {
		e.settle()
		return
	}
	if e.State() != transport.StateReady {
		return
	}
	ended := e.peer.hasEnded()
	if !e.harvest() {
		e.fail("the peer has ended receives that it could not")
	}
	if ended { // seen before what it has ended
		e.lose("the peer has retired, or its process has ended")
	}
}

// harvest ends the receives that the peer has used up. False: that is not
// possible. Under the lock.
func (e *Endpoint) harvest() bool {
	ended := e.peer.ended.Load()
	if ended-e.numEnded > uint64(e.waiting.num) {
		return false
	}
	lane := e.peer.lane.Bytes()
	for ; e.numEnded != ended; e.numEnded++ {
		at := laneEndsOff + endBytes*int64(e.numEnded%MaxDepth)
		i := e.waiting.front()
		done, ok := readEnd(sys.Word(lane, at).Load(), sys.Word(lane, at+8).Load(), e.recvs.all[i].numBytes)
		if !ok {
			return false
		}
		e.waiting.pop()
		e.finishRecv(i, done)
		if done.Status != transport.StatusOK {
			e.numEnded++
			e.fail("a send of the peer was longer than the receive")
			return true
		}
	}
	return true
}

// readEnd reads what a peer says of a receive of numBytes bytes. False: it
// makes no sense.
func readEnd(word, bytes uint64, numBytes int) (transport.Completion, bool) {
	c := transport.Completion{Op: transport.Opcode(word), Status: transport.Status(word >> 8)}
	if word>>16&0xffff != 0 || c.Status != transport.StatusOK && c.Status != transport.StatusLocal {
		return c, false
	}
	if c.Status == transport.StatusLocal {
		c.Op, c.Vendor = transport.OpRecv, VendorTooShort
		return c, true
	}
	c.NumBytes = uint32(bytes)
	switch c.Op {
	case transport.OpRecv:
		return c, word>>32 == 0 && bytes <= uint64(numBytes)
	case transport.OpRecvImm:
		c.HasImm, c.Imm = true, uint32(word>>32)
		return c, bytes <= MaxRequestBytes
	}
	return c, false
}

// run executes requests. Under the lock, running.
func (e *Endpoint) run(budget int) (spent int) {
	for moved := true; moved; {
		moved = false
		for _, q := range []*ring[int]{&e.direct, &e.matched} {
			if spent >= budget {
				return spent
			}
			if q.num == 0 || e.State() != transport.StateReady || !e.peer.isReady() {
				continue
			}
			n, did := e.step(q)
			spent, moved = spent+n, moved || did
		}
	}
	return spent
}

// step does the next piece of work of the first request of a queue; false if
// there is something to wait for.
func (e *Endpoint) step(q *ring[int]) (spent int, did bool) {
	i := q.front()
	r := &e.sends.all[i]
	id, l := e.reach(r)
	switch l {
	case unknown:
		e.ask(id)
		return 0, false
	case waits:
		return 0, false
	case refused:
		e.refuse(q, i, transport.StatusRemote, VendorRegion)
	case nonsense:
		e.refuse(q, i, transport.StatusRemote, VendorNonsense)
	case found:
		if r.op == transport.OpSend && uint64(r.numBytes) > e.match.numBytes {
			e.endReceive(r, transport.StatusLocal)
			e.refuse(q, i, transport.StatusRemote, VendorTooShort)
			break
		}
		return e.copyChunk(q, i), true
	}
	return requestBytes, true
}

// waits is a result beside those of peer.reach: the peer has to do something first.
const waits = nonsense + 1

// reach finds the memory of the peer that a request is about, in remote.
func (e *Endpoint) reach(r *request) (memory uint64, l lookup) {
	if needsReceive(r.op) {
		if l := e.takeReceive(); l != found {
			return 0, l
		}
	}
	if r.op == transport.OpSend {
		return e.match.resolve(e.peer, min(uint64(r.numBytes), e.match.numBytes), &e.remote)
	}
	need := transport.AccessWrite
	if r.op == transport.OpRead {
		need = transport.AccessRead
	}
	mem, memory, l := e.peer.reach(r.remote, r.remoteOff, int64(r.numBytes), need)
	e.remote.one(mem)
	return memory, l
}

// takeReceive reads the peer's oldest receive that was not used up.
func (e *Endpoint) takeReceive() lookup {
	if e.hasMatch {
		return found
	}
	posted := e.peer.posted.Load()
	if posted == e.numTaken {
		e.starved.Store(1) // then look again: a peer that posts later rings
		posted = e.peer.posted.Load()
	}
	switch n := posted - e.numTaken; {
	case n == 0:
		return waits
	case n > e.peer.window || !e.match.read(e.peer, e.numTaken):
		return nonsense
	}
	e.starved.Store(0)
	e.hasMatch = true
	return found
}

// copyChunk copies one chunk, without the lock, and ends the request with its
// last.
func (e *Endpoint) copyChunk(q *ring[int], i int) (spent int) {
	r := &e.sends.all[i]
	n := min(chunkBytes, r.numBytes-r.moved)
	mark := r.remote.Key
	if r.op == transport.OpSend {
		mark = touchingReceive
	}
	e.touching.Store(mark)
	defer e.untouch(mark)
	if !e.mayTouch(mark) {
		return requestBytes // the next look finds out what it is
	}
	r.local(&e.local)
	dst, src := &e.remote, &e.local
	if r.op == transport.OpRead {
		dst, src = src, dst
	}
	e.executing = i
	e.mu.Unlock()
	move(dst, src, r.moved, n)
	e.mu.Lock()
	e.executing = -1
	r.moved += n
	e.moved(q, i)
	return n + requestBytes
}

// moved ends a request after its last chunk, or if the endpoint has ended
// meanwhile.
func (e *Endpoint) moved(q *ring[int], i int) {
	r := &e.sends.all[i]
	switch {
	case e.State() != transport.StateReady: // enterError has emptied the queue
		e.finishSend(i, transport.StatusFlushed, vendorNone)
	case r.moved == r.numBytes:
		q.pop()
		if needsReceive(r.op) {
			e.endReceive(r, transport.StatusOK)
		}
		e.finishSend(i, transport.StatusOK, vendorNone)
	}
}

// mayTouch looks again at the peer after this side has said what it touches.
func (e *Endpoint) mayTouch(mark uint64) bool {
	return e.peer.isReady() && (mark == touchingReceive || e.peer.isShown(mark))
}

// untouch ends a copy, and tells a peer that may wait for that.
func (e *Endpoint) untouch(mark uint64) {
	e.touching.Store(0)
	if !e.mayTouch(mark) {
		e.again = true
		e.ringPeer()
	}
}

// endReceive tells the peer what became of its receive.
func (e *Endpoint) endReceive(r *request, s transport.Status) {
	word := uint64(transport.OpRecv)
	if r.op == transport.OpWriteImm {
		word = uint64(transport.OpRecvImm) | uint64(r.imm)<<32
	}
	at := laneEndsOff + endBytes*int64(e.numTaken%MaxDepth)
	e.word(at).Store(word | uint64(s)<<8)
	e.word(at + 8).Store(uint64(r.numBytes))
	e.numTaken++
	e.hasMatch = false
	e.end.Store(e.numTaken)
	e.ringPeer()
}

// refuse ends the first request of a queue, and the endpoint with it.
func (e *Endpoint) refuse(q *ring[int], i int, s transport.Status, vendor uint32) {
	q.pop()
	e.finishSend(i, s, vendor)
	e.fail("a request was refused")
}

// ask asks the peer for a memory. The answer comes to the connection manager.
func (e *Endpoint) ask(id uint64) {
	if e.peer.asked != 0 || id == 0 {
		return // one after another
	}
	e.peer.asked = id
	if err := send(e.conn.fd, message{kind: kindAsk, memory: id}); err != nil {
		e.lose("the peer does not hear") // not even two messages
	}
}

func (e *Endpoint) finishSend(i int, s transport.Status, vendor uint32) {
	r := &e.sends.all[i]
	c := transport.Completion{ID: r.id, Endpoint: e.id, Op: r.op, Status: s, Vendor: vendor}
	if s == transport.StatusOK {
		c.NumBytes = uint32(r.numBytes)
	}
	e.finish(finished{c, i, false})
}

func (e *Endpoint) finishRecv(i int, c transport.Completion) {
	c.ID, c.Endpoint = e.recvs.all[i].id, e.id
	e.finish(finished{c, i, true})
}

func (e *Endpoint) finish(f finished) {
	e.finished.push(f)
	e.t.finished.set(e.slot)
	e.t.bell.wake()
}

// collect moves what has finished to done.
func (e *Endpoint) collect(done []transport.Completion) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ; n < len(done) && e.finished.num > 0; n++ {
		f := e.finished.pop()
		done[n] = f.completion
		if f.recv {
			e.recvs.release(f.slot)
		} else {
			e.sends.release(f.slot)
		}
	}
	if e.finished.num == 0 {
		e.t.finished.clear(e.slot)
	}
	return n
}
