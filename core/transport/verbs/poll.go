package verbs

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// pollLength is how many completions one call takes from the device at most.
const pollLength = 64

// poll is what takes completions off the queue.
type poll struct {
	// mu guards all of it. It is never held while anything blocks.
	mu     sync.Mutex
	queue  *libibverbs.Poller
	memory *sys.Mapping
	wcs    uintptr // pollLength completions, of C
	spare  uintptr // libibverbs.OutBytes behind them, of Wait
	closed bool
	armed  bool // the next completion raises an event
	// Of wcs: what Wait has found, which Poll translates. Until then it counts
	// as outstanding.
	begin, end int
	// failed are endpoints to flush, and resets DC initiators to reset, when mu
	// is free again.
	failed []*endpoint
	resets []int

	// unsent counts the requests of all endpoints that wait in side.unsent.
	unsent atomic.Int64
}

func (p *poll) start(queue *libibverbs.Poller) (err error) {
	p.queue = queue
	const wcsBytes = pollLength * unsafe.Sizeof(libibverbs.WC{})
	p.memory, err = sys.MapAnonymous(int64(wcsBytes + libibverbs.OutBytes))
	if err != nil {
		return err
	}
	p.wcs = uintptr(unsafe.Pointer(unsafe.SliceData(p.memory.Bytes())))
	p.spare = p.wcs + wcsBytes
	return nil
}

func (p *poll) stop() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
}

// Poll takes completions.
func (t *Transport) Poll(done []transport.Completion) (int, error) {
	t.poll.mu.Lock()
	n, err := t.pollLocked(done)
	t.unlockPoll()
	return n, err
}

// unlockPoll ends what needs poll.mu, and then does what must not be done
// under it.
func (t *Transport) unlockPoll() {
	p := &t.poll
	if len(p.failed) == 0 && len(p.resets) == 0 {
		p.mu.Unlock()
		return
	}
	failed, resets := slices.Clone(p.failed), slices.Clone(p.resets)
	clear(p.failed)
	p.failed, p.resets = p.failed[:0], p.resets[:0]
	p.mu.Unlock()
	for _, e := range failed {
		_ = e.flush() // Retire does it again, and reports
	}
	for _, on := range resets {
		t.resetDCI(on)
	}
}

func (t *Transport) pollLocked(done []transport.Completion) (int, error) {
	p := &t.poll
	if p.closed {
		return 0, transport.ErrClosed
	}
	n := t.translate(done)
	n += t.pollUnsent(done[n:])
	for n < len(done) {
		most := min(pollLength, len(done)-n)
		had, err := p.take(most)
		n += t.translate(done[n:])
		if err != nil || had < most {
			return n, err
		}
	}
	return n, nil
}

// take asks the device once, when all that it had before is translated, and
// returns how many completions it had.
func (p *poll) take(most int) (had int, err error) {
	if had, err = p.queue.Poll(most, p.wcs); err != nil {
		had = 0
	}
	p.begin, p.end = 0, had
	return had, err
}

// translate gives what the device had, as far as there is room, and returns how
// many belong to a work request.
func (t *Transport) translate(done []transport.Completion) (made int) {
	p := &t.poll
	for ; p.begin < p.end && made < len(done); p.begin++ {
		if t.complete(p.at(p.begin), &done[made]) {
			made++
		} else {
			t.strays.Add(1)
		}
	}
	return made
}

// find reports whether there is something to be polled, and asks the device if
// nothing is known of.
func (t *Transport) find() (bool, error) {
	p := &t.poll
	if p.begin < p.end || p.unsent.Load() > 0 {
		return true, nil
	}
	had, err := p.take(pollLength)
	t.recordFailures()
	if t.fatal.Load() {
		err = nil // it is lost already: a waiting caller is not to find that out over and over
	}
	return had > 0, err
}

// recordFailures marks endpoints as failed when Wait has found their requests failed: a
// caller that looks at events before completions learns why.
func (t *Transport) recordFailures() {
	p := &t.poll
	for i := p.begin; i < p.end; i++ {
		wc := p.at(i)
		if wc.Status == libibverbs.WCSuccess {
			continue
		}
		if s, _ := t.whose(wc); s != nil {
			t.recordFailure(s.endpoint, wc)
		}
	}
}

// at is the i-th completion that the device had.
func (p *poll) at(i int) *libibverbs.WC {
	return dl.At[libibverbs.WC](p.wcs + uintptr(i)*unsafe.Sizeof(libibverbs.WC{}))
}

// pollUnsent takes completions of what was posted to failed endpoints. It
// looks through the table: it is rarely asked for.
func (t *Transport) pollUnsent(done []transport.Completion) (n int) {
	if t.poll.unsent.Load() == 0 {
		return 0
	}
	for i := range t.table {
		e := t.table[i].Load()
		for n < len(done) && e != nil && (e.send.nextUnsent(&done[n]) || e.recv.nextUnsent(&done[n])) {
			n++
		}
	}
	t.poll.unsent.Add(-int64(n))
	return n
}

// complete translates one completion and frees its slot; false if it belongs
// to nothing. After it, the endpoint may be closed at any moment.
func (t *Transport) complete(wc *libibverbs.WC, done *transport.Completion) bool {
	s, slot := t.whose(wc)
	if s == nil {
		return false
	}
	e := s.endpoint
	*done = transport.Completion{
		ID: slot.id, Endpoint: e.id, Op: slot.op, Status: statusOf(wc.Status),
	}
	if wc.Status == libibverbs.WCSuccess {
		succeeded(wc, slot, done)
	} else {
		done.Vendor = vendorCode(wc)
		t.recordFailure(e, wc)
	}
	if s == e.send && e.dc.inUse() {
		t.endedDC(e, wc.Status == libibverbs.WCSuccess)
	}
	s.free(tag(wc.WRID).slot())
	return true
}

// whose is the side and the slot that a completion belongs to; nil: it belongs to none.
func (t *Transport) whose(wc *libibverbs.WC) (*side, *slot) {
	mark := tag(wc.WRID)
	if mark.endpoint() >= len(t.table) {
		return nil, nil
	}
	e := t.table[mark.endpoint()].Load()
	if e == nil {
		return nil, nil
	}
	s := e.send
	if mark.recv() {
		s = e.recv
	}
	if slot := s.find(mark); slot != nil {
		return s, slot
	}
	return nil, nil
}

// recordFailure takes an endpoint for failed from its first failed request on.
func (t *Transport) recordFailure(e *endpoint, wc *libibverbs.WC) {
	if e.fail(failureTexts[min(int(wc.Status), len(failureTexts)-1)]) {
		t.poll.failed = append(t.poll.failed, e)
	}
}

func succeeded(wc *libibverbs.WC, s *slot, done *transport.Completion) {
	done.NumBytes = s.bytes
	if s.op != transport.OpRecv {
		return
	}
	done.NumBytes = wc.ByteLen
	if wc.Opcode == libibverbs.WCRecvRDMAWithImm {
		done.Op = transport.OpRecvImm
	}
	if wc.WCFlags&libibverbs.WCWithImm != 0 {
		done.HasImm, done.Imm = true, bigEndian(wc.ImmData)
	}
}
