package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// numOtherEvents bounds the reports, besides one per endpoint, that were not taken yet.
// Beyond it they are only counted.
const numOtherEvents = 64

// events are the reports that PollEvents has not given yet.
type events struct {
	reading sync.Mutex // one at a time takes events off the device
	closed  bool       // under reading
	every   time.Duration
	looked  atomic.Int64 // when PollEvents did last, ns since opened
	opened  time.Time
	// changes counts what may make the port usable or not, before it does: events
	// that were taken, and that the device was found lost.
	changes atomic.Uint64

	mu      sync.Mutex
	queue   []transport.Event // never longer than its capacity
	counts  [libibverbs.NumEventTypes + 1]uint64
	dropped uint64
}

// lookEvery is how often PollEvents asks the device by itself, which costs a
// system call and some memory. Wait sees at once what comes.
const lookEvery = time.Millisecond

func (v *events) start(numEndpoints int) {
	v.queue = make([]transport.Event, 0, numEndpoints+numOtherEvents)
	v.every, v.opened = lookEvery, time.Now()
	v.looked.Store(-int64(lookEvery))
}

// due is whether PollEvents is to ask the device.
func (v *events) due() bool {
	now, last := int64(time.Since(v.opened)), v.looked.Load()
	return now-last >= int64(v.every) && v.looked.CompareAndSwap(last, now)
}

func (v *events) stop() {
	v.reading.Lock()
	v.closed = true
	v.reading.Unlock()
}

func (v *events) waiting() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.queue) > 0
}

// PollEvents gives reports, the oldest first.
func (t *Transport) PollEvents(into []transport.Event) int {
	v := &t.events
	if v.due() {
		t.takeEvents()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	n := copy(into, v.queue)
	v.queue = v.queue[:copy(v.queue, v.queue[n:])]
	return n
}

// report queues a report. An endpoint has one in its life; but closed ones may
// have left theirs, so the bound may be met by those, too.
func (t *Transport) report(e transport.Event) {
	v := &t.events
	v.mu.Lock()
	defer v.mu.Unlock()
	room := cap(v.queue) - len(v.queue)
	if e.Kind != transport.EventEndpointFailed {
		room -= t.limits.NumEndpoints
	}
	if room <= 0 {
		v.dropped++
		if e.Kind == transport.EventOther || !v.dropOldest() {
			return
		}
	}
	v.queue = append(v.queue, e)
}

// dropOldest drops the oldest report that is not of an endpoint: what the device became
// last is worth more than what it was, or what no caller acts on.
func (v *events) dropOldest() bool {
	for i, old := range v.queue {
		if old.Kind != transport.EventEndpointFailed {
			v.queue = slices.Delete(v.queue, i, i+1)
			return true
		}
	}
	return false
}

// takeEvents takes everything off the device.
func (t *Transport) takeEvents() {
	v := &t.events
	v.reading.Lock()
	defer v.reading.Unlock()
	for !v.closed {
		event, err := t.lib.GetAsyncEvent(t.ctx)
		switch {
		case err == nil:
			t.take(event)
		case errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENODEV):
			t.loseDevice(t.Device() + ": it was removed") // the event itself may be lost
			return
		default:
			return // EAGAIN: that was all
		}
	}
}

// take acknowledges one event and then does what it asks for. What the event
// is of cannot be destroyed before it is acknowledged, so its endpoint is
// looked up first.
func (t *Transport) take(event *libibverbs.AsyncEvent) {
	t.events.changes.Add(1)
	kind := event.Type
	e, dci := t.element(kind, event.Element)
	port := uint8(event.Element)
	t.lib.AckAsyncEvent(event)
	t.events.mu.Lock()
	t.events.counts[min(kind, libibverbs.NumEventTypes)]++
	t.events.mu.Unlock()
	t.handle(kind, e, port)
	if dci >= 0 && failsQueuePair(kind) {
		t.failDCI(dci, eventText(kind, t.Device()))
	}
}

// element is what an event is of: an endpoint, or a DC initiator (-1: none).
func (t *Transport) element(kind libibverbs.EventType, element uintptr) (e *endpoint, dci int) {
	switch {
	case kind == libibverbs.EventSRQErr:
		return t.ofSRQ(libibverbs.SRQ(element)), -1
	case !ofQueuePair(kind):
		return nil, -1
	}
	return t.ofQP(libibverbs.QP(element)), t.dcPort.find(libibverbs.QP(element))
}

// failsQueuePair is whether nothing moves any more through what the event is of.
func failsQueuePair(kind libibverbs.EventType) bool {
	switch kind {
	case libibverbs.EventQPFatal, libibverbs.EventQPReqErr, libibverbs.EventQPAccessErr,
		libibverbs.EventPathMigErr, libibverbs.EventSRQErr:
		return true
	}
	return false
}

func ofQueuePair(kind libibverbs.EventType) bool {
	switch kind {
	case libibverbs.EventQPFatal, libibverbs.EventQPReqErr, libibverbs.EventQPAccessErr,
		libibverbs.EventCommEst, libibverbs.EventSQDrained, libibverbs.EventPathMig,
		libibverbs.EventPathMigErr, libibverbs.EventQPLastWQEReached:
		return true
	}
	return false
}

// handle changes what an event says has changed.
func (t *Transport) handle(kind libibverbs.EventType, e *endpoint, port uint8) {
	detail := eventText(kind, t.Device())
	switch kind {
	case libibverbs.EventQPFatal, libibverbs.EventQPReqErr, libibverbs.EventQPAccessErr,
		libibverbs.EventPathMigErr, libibverbs.EventSRQErr:
		if e != nil {
			e.fail(detail)
			_ = e.flush() // Retire does it again, and reports
			return
		}
	case libibverbs.EventDeviceFatal, libibverbs.EventCQErr:
		t.loseDevice(detail)
		return
	case libibverbs.EventPortErr:
		if port == t.port {
			t.losePort(detail)
			return
		}
	case libibverbs.EventPortActive, libibverbs.EventLIDChange, libibverbs.EventGIDChange,
		libibverbs.EventClientReregister:
		if port == t.port {
			t.arrive(detail)
			return
		}
	}
	t.report(transport.Event{Kind: transport.EventOther, Detail: detail})
}

// arrive finds out where the port is now. A port that was down is usable when
// it is active and has an address, which may come later than the port.
func (t *Transport) arrive(detail string) {
	active, err := t.portActive()
	if err == nil {
		err = t.locate()
	}
	switch {
	case err != nil:
		detail += ": " + err.Error()
	case active && !t.fatal.Load() && t.down.Load():
		t.setDown(false, detail)
		return
	}
	t.report(transport.Event{Kind: transport.EventOther, Detail: detail})
}

// losePort ends what is connected through the port: no answer comes any more,
// and peers should not have to wait for that. Queue pairs can still be told to
// flush.
func (t *Transport) losePort(detail string) {
	t.setDown(true, detail)
	for i := range t.table {
		if e := t.table[i].Load(); e != nil && e.fail(detail) {
			_ = e.flush() // Retire does it again, and reports
		}
	}
}

// setDown notes whether the port works, and reports a change.
func (t *Transport) setDown(down bool, detail string) {
	if down {
		t.why.Store(&detail)
	}
	if t.down.Swap(down) == down {
		t.report(transport.Event{Kind: transport.EventOther, Detail: detail})
		return
	}
	kind := transport.EventDeviceUp
	if down {
		kind = transport.EventDeviceDown
		t.losses.Add(1)
	}
	t.report(transport.Event{Kind: kind, Detail: detail})
}

// loseDevice ends everything, because the device gives no more completions.
func (t *Transport) loseDevice(detail string) {
	if t.fatal.Swap(true) {
		return
	}
	t.events.changes.Add(1)
	t.setDown(true, detail)
	t.abandonDC()
	for i := range t.table {
		if e := t.table[i].Load(); e != nil {
			e.abandon(detail)
		}
	}
}

// gone takes errors of calls that free something for success when the device
// was removed: the kernel has freed it then. The library keeps a little memory.
func (t *Transport) gone(err error) error {
	if t.fatal.Load() && (errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENODEV)) {
		return nil
	}
	return err
}

var eventTexts = [libibverbs.NumEventTypes]string{
	"completion queue failed", "queue pair failed", "queue pair got a bad request",
	"queue pair refused an access", "connection established by a packet", "send queue drained",
	"path migrated", "path migration failed", "device failed", "port is active", "port is down",
	"LID changed", "partition keys changed", "subnet manager changed", "shared receive queue failed",
	"shared receive queue is low", "last work request of a queue pair", "asked to register again",
	"addresses changed", "work queue failed",
}

func eventText(kind libibverbs.EventType, device string) string {
	if kind < libibverbs.NumEventTypes {
		return device + ": " + eventTexts[kind]
	}
	return fmt.Sprintf("%s: event %d", device, kind)
}
