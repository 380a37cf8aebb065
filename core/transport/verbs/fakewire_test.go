package verbs

import (
	"syscall"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
)

// fakeWire is the fake's queue pairs of all kinds, and carries requests between
// them where a test asks for that: at once, in order, in this process's memory.
type fakeWire struct {
	// moves means that requests are carried out as they are posted. Else tests
	// say how each one ends.
	moves bool
	// impatient means that a request which needs a receive, or a peer that has
	// not connected yet, ends at once, and does not wait for that.
	impatient bool
	// ends are what the next requests end with, instead of being carried out.
	ends []libibverbs.WCStatus

	queues map[uintptr]*fakeQueue
	recvs  map[uintptr][]fakeRequest // of queue pairs and shared receive queues
	mrs    map[uint32]fakeMR         // by key
	ahs    []libibverbs.AHAttr       // made
	sent   []fakeSend                // that initiators took
}

type fakeKind int

const (
	fakeRC fakeKind = iota
	fakeTarget
	fakeInitiator
)

// fakeQueue is a queue pair.
type fakeQueue struct {
	addr      uintptr
	kind      fakeKind
	state     uint32
	num, dest uint32
	srq       uintptr
	key       uint64
	sends     []fakeSend // posted, and not ended
	batch     []fakeSend // being built
	building  bool
}

// fakeSend is a request to be sent. Of one of DC, parts counts what it was told
// beside its operation: its data, and its target.
type fakeSend struct {
	libibverbs.SendWR
	sges   []libibverbs.SGE
	inline []byte
	to     libibverbs.DCTarget
	parts  int
}

type fakeMR struct {
	addr, n uintptr
	access  uint32
}

func newFakeWire() fakeWire {
	return fakeWire{queues: map[uintptr]*fakeQueue{}, recvs: map[uintptr][]fakeRequest{}, mrs: map[uint32]fakeMR{}}
}

// fakeOwnPart is where the driver's part of a queue pair of its own lies.
const fakeOwnPart = 512

func (f *fakeLib) addMR(mr uintptr, body fakeMR) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mrs[uint32(mr)] = body
}

func (f *fakeLib) addRC(qp uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextQP++
	dl.At[libibverbs.QPHead](qp).QPNum = f.nextQP
	f.queues[qp] = &fakeQueue{addr: qp, num: f.nextQP}
}

func (f *fakeLib) addDC(made fakeDC) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dcQPs = append(f.dcQPs, made)
	q := &fakeQueue{addr: made.qp, kind: fakeInitiator, srq: uintptr(made.attr.SRQ), key: made.own.DCTAccessKey}
	if made.own.DCType == libibverbs.Mlx5DCTypeDCT {
		q.kind = fakeTarget
	}
	f.queues[made.qp] = q
}

func (f *fakeLib) createAH(pd, attr uintptr) uintptr {
	ah := f.create("create_ah", "ah", pd, 64)
	if ah != 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ahs = append(f.ahs, *dl.At[libibverbs.AHAttr](attr))
	}
	return ah
}

// destroyed forgets what was of an object, as the driver does: completions of a target
// that were not polled, too.
func (f *fakeLib) destroyed(addr uintptr) {
	q := f.queues[addr]
	delete(f.queues, addr)
	delete(f.recvs, addr)
	delete(f.mrs, uint32(addr))
	if q == nil {
		return
	}
	if d := f.of(addr); q.kind == fakeTarget {
		kept := d.done[:0]
		for _, wc := range d.done {
			if wc.QPNum != q.num {
				kept = append(kept, wc)
			}
		}
		d.done = kept
	} else if !d.removed {
		assert.Empty(f.t, q.sends, "ES6: queue pair destroyed with requests outstanding")
	}
	f.runAll()
}

// moveTo changes a queue pair's state, if that is allowed: by the kernel's
// driver for the kinds of DC.
func (f *fakeLib) moveTo(q *fakeQueue, m fakeModify) syscall.Errno {
	from, to := q.state, m.attr.QPState
	next := from+1 == to && to <= libibverbs.QPStateRTS
	switch q.kind {
	case fakeTarget:
		next = next && to != libibverbs.QPStateRTS
	case fakeInitiator:
		next = next || to == libibverbs.QPStateErr && from != libibverbs.QPStateReset || to == libibverbs.QPStateReset
	default:
		next = next || to == libibverbs.QPStateErr
	}
	if !assert.True(f.t, next, "kind %d from state %d to %d", q.kind, from, to) {
		return syscall.EINVAL
	}
	q.state = to
	if q.kind == fakeTarget && to == libibverbs.QPStateRTR {
		f.nextQP++ // not before
		q.num = f.nextQP
		dl.At[libibverbs.QPHead](q.addr).QPNum = q.num
	}
	if m.mask&libibverbs.QPDestQPN != 0 {
		q.dest = m.attr.DestQPNum
	}
	if to == libibverbs.QPStateErr {
		f.flush(q)
	}
	f.runAll() // the requests that wait for this one
	return 0
}

// flush returns what a queue pair has.
func (f *fakeLib) flush(q *fakeQueue) {
	q.state = libibverbs.QPStateErr
	d := f.of(q.addr)
	if d.removed {
		return
	}
	for _, s := range q.sends {
		d.push(f.t, libibverbs.WC{WRID: s.WRID, Status: libibverbs.WCWRFlushErr, QPNum: q.num})
	}
	q.sends = nil
	if q.kind == fakeRC {
		for _, r := range f.recvs[q.addr] {
			d.push(f.t, libibverbs.WC{WRID: r.id, Status: libibverbs.WCWRFlushErr, QPNum: q.num})
		}
		delete(f.recvs, q.addr)
	}
}

// postRecvs takes receives of a queue pair or of a shared receive queue.
func (f *fakeLib) postRecvs(to, wr, bad uintptr) uintptr {
	f.mu.Lock()
	moves := f.moves
	f.mu.Unlock()
	if !moves {
		return f.post(to, wr, bad)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.Contains(f.t, []string{"qp", "srq"}, f.alive[to])
	for wr != 0 {
		head := dl.At[libibverbs.RecvWR](wr)
		f.recvs[to] = append(f.recvs[to], fakeRequest{head.WRID, pieces(head.SGList, int(head.NumSGE))})
		wr = head.Next
	}
	if q := f.queues[to]; q != nil && q.state == libibverbs.QPStateErr {
		f.flush(q)
	}
	f.runAll()
	return 0
}

func pieces(at uintptr, n int) (list []libibverbs.SGE) {
	for i := range uintptr(n) {
		list = append(list, *dl.At[libibverbs.SGE](at + i*sgeBytes))
	}
	return list
}

// postSends takes sends of a reliable connected queue pair.
func (f *fakeLib) postSends(qp, wr uintptr) uintptr {
	q := f.queues[qp]
	for wr != 0 {
		s := fakeSend{SendWR: *dl.At[libibverbs.SendWR](wr)}
		s.sges = pieces(s.SGList, int(s.NumSGE))
		if s.SendFlags&libibverbs.SendInline != 0 {
			s.inline = gather(s.sges)
		}
		q.sends = append(q.sends, s)
		wr = s.Next
	}
	f.run(q)
	return 0
}

func gather(sges []libibverbs.SGE) []byte {
	data := []byte{}
	for _, g := range sges {
		data = append(data, unsafe.Slice(dl.At[byte](uintptr(g.Addr)), g.Length)...)
	}
	return data
}

func scatter(sges []libibverbs.SGE, data []byte) {
	for _, g := range sges {
		data = data[copy(unsafe.Slice(dl.At[byte](uintptr(g.Addr)), g.Length), data):]
	}
}

func room(sges []libibverbs.SGE) (n int) {
	for _, g := range sges {
		n += int(g.Length)
	}
	return n
}

// runAll goes on with every request that waits for a receive, or for a target.
func (f *fakeLib) runAll() {
	for _, q := range f.queues {
		f.run(q)
	}
}

// run carries out the requests of a queue pair, as far as that goes.
func (f *fakeLib) run(q *fakeQueue) {
	for f.moves && len(q.sends) > 0 && !f.of(q.addr).removed {
		if q.state == libibverbs.QPStateErr {
			f.flush(q)
			return
		}
		s := q.sends[0]
		status, ended := f.carry(q, &s)
		if !ended {
			return
		}
		q.sends = q.sends[1:]
		f.of(q.addr).push(f.t, libibverbs.WC{WRID: s.WRID, Status: status, QPNum: q.num})
		if status != libibverbs.WCSuccess {
			f.flush(q)
		}
	}
}

// carry carries out one request; ended is false if it waits for a receive.
func (f *fakeLib) carry(q *fakeQueue, s *fakeSend) (status libibverbs.WCStatus, ended bool) {
	if len(f.ends) > 0 {
		status, f.ends = f.ends[0], f.ends[1:]
		if status != libibverbs.WCSuccess {
			return status, true
		}
	}
	to := f.peer(q, s)
	switch {
	case to == nil && !f.impatient && f.isComing(q):
		return 0, false
	case to == nil || !f.isPlugged(to) || !f.isPlugged(q):
		return libibverbs.WCRetryExcErr, true
	case s.Opcode == libibverbs.WRRDMARead:
		return f.read(s), true
	}
	data := s.inline
	if data == nil {
		data = gather(s.sges)
	}
	if s.Opcode != libibverbs.WRSend && !f.may(s, len(data), libibverbs.AccessRemoteWrite) {
		return libibverbs.WCRemAccessErr, true
	}
	if s.Opcode == libibverbs.WRRDMAWrite {
		copy(unsafe.Slice(dl.At[byte](uintptr(s.RemoteAddr)), len(data)), data)
		return libibverbs.WCSuccess, true
	}
	return f.deliver(to, s, data)
}

// peer is the queue pair that a request reaches.
func (f *fakeLib) peer(q *fakeQueue, s *fakeSend) *fakeQueue {
	for _, to := range f.queues {
		alive := to.state == libibverbs.QPStateRTR || to.state == libibverbs.QPStateRTS
		switch {
		case !alive:
		case q.kind == fakeRC && to.kind == fakeRC && to.num == q.dest && to.dest == q.num:
			return to
		case q.kind == fakeInitiator && to.kind == fakeTarget && to.num == s.to.Number && to.key == s.to.Key:
			return to
		}
	}
	return nil
}

// isPlugged is whether the device of a queue pair is in its network.
func (f *fakeLib) isPlugged(q *fakeQueue) bool {
	d := f.of(q.addr)
	return !d.removed && d.port == libibverbs.PortActive
}

// isComing is whether the peer of a queue pair has not connected yet.
func (f *fakeLib) isComing(q *fakeQueue) bool {
	for _, to := range f.queues {
		if q.kind == fakeRC && to.kind == fakeRC && to.num == q.dest {
			return to.state < libibverbs.QPStateRTR
		}
	}
	return false
}

// may is whether a peer's region allows n bytes.
func (f *fakeLib) may(s *fakeSend, n int, access uint32) bool {
	mr, known := f.mrs[s.RKey]
	begin, end := s.RemoteAddr, s.RemoteAddr+uint64(n)
	return n == 0 || known && mr.access&access != 0 && begin <= end && begin >= uint64(mr.addr) && end <= uint64(mr.addr+mr.n)
}

func (f *fakeLib) read(s *fakeSend) libibverbs.WCStatus {
	n := room(s.sges)
	if !f.may(s, n, libibverbs.AccessRemoteRead) {
		return libibverbs.WCRemAccessErr
	}
	if n > 0 {
		scatter(s.sges, unsafe.Slice(dl.At[byte](uintptr(s.RemoteAddr)), n))
	}
	return libibverbs.WCSuccess
}

// deliver uses up a receive.
func (f *fakeLib) deliver(to *fakeQueue, s *fakeSend, data []byte) (status libibverbs.WCStatus, ended bool) {
	from := to.addr
	if to.srq != 0 {
		from = to.srq
	}
	if len(f.recvs[from]) == 0 {
		return libibverbs.WCRNRRetryExcErr, f.impatient
	}
	r, d := f.recvs[from][0], f.of(to.addr)
	f.recvs[from] = f.recvs[from][1:]
	wc := libibverbs.WC{WRID: r.id, Opcode: libibverbs.WCRecv, ByteLen: uint32(len(data)), QPNum: to.num}
	switch {
	case s.Opcode == libibverbs.WRRDMAWriteWithImm:
		copy(unsafe.Slice(dl.At[byte](uintptr(s.RemoteAddr)), len(data)), data)
		wc.Opcode, wc.WCFlags, wc.ImmData = libibverbs.WCRecvRDMAWithImm, libibverbs.WCWithImm, s.ImmData
	case room(r.sges) < len(data):
		wc.Status = libibverbs.WCLocLenErr
		d.push(f.t, wc)
		if to.kind == fakeRC {
			f.flush(to)
		}
		return libibverbs.WCRemInvReqErr, true
	default:
		scatter(r.sges, data)
	}
	d.push(f.t, wc)
	return libibverbs.WCSuccess, true
}
