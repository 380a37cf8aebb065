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
	// stash has what Wait found, for the next Poll.
	stash      [pollLength]transport.Completion
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
	n := copy(done, p.stash[p.begin:p.end])
	p.begin += n
	n += t.pollUnsent(done[n:])
	for n < len(done) {
		most := min(pollLength, len(done)-n)
		asked, made, err := t.pollQueue(done[n : n+most])
		n += made
		if err != nil || asked < most {
			return n, err
		}
	}
	return n, nil
}

// pollQueue asks the device once and returns how many completions it had, and
// how many of them belong to a work request.
func (t *Transport) pollQueue(done []transport.Completion) (had, made int, err error) {
	p := &t.poll
	had, err = p.queue.Poll(len(done), p.wcs)
	if err != nil {
		return 0, 0, err
	}
	for i := range had {
		wc := dl.At[libibverbs.WC](p.wcs + uintptr(i)*unsafe.Sizeof(libibverbs.WC{}))
		if t.complete(wc, &done[made]) {
			made++
		} else {
			t.strays.Add(1)
		}
	}
	return had, made, nil
}

// fillStash polls into the stash if that is empty, and reports whether it has
// something.
func (t *Transport) fillStash() (bool, error) {
	p := &t.poll
	if p.begin < p.end {
		return true, nil
	}
	p.begin, p.end = 0, t.pollUnsent(p.stash[:])
	if p.end > 0 {
		return true, nil
	}
	_, n, err := t.pollQueue(p.stash[:])
	p.end = n
	return n > 0, err
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
	mark := tag(wc.WRID)
	if mark.endpoint() >= len(t.table) {
		return false
	}
	e := t.table[mark.endpoint()].Load()
	if e == nil {
		return false
	}
	s := e.send
	if mark.recv() {
		s = e.recv
	}
	slot := s.find(mark)
	if slot == nil {
		return false
	}
	*done = transport.Completion{
		ID: slot.id, Endpoint: e.id, Op: slot.op, Status: statusOf(wc.Status),
	}
	if wc.Status == libibverbs.WCSuccess {
		succeeded(wc, slot, done)
	} else {
		done.Vendor = vendorCode(wc)
		t.noteFailure(e, wc)
	}
	if s == e.send && e.dc.inUse() {
		t.endedDC(e, wc.Status == libibverbs.WCSuccess)
	}
	s.free(mark.slot())
	return true
}

// noteFailure takes an endpoint for failed from its first failed request on.
func (t *Transport) noteFailure(e *endpoint, wc *libibverbs.WC) {
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
