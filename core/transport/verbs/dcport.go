package verbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/libibverbs"
)

// dcQuota is how many requests more a peer may post while others wait for its
// initiator.
const dcQuota = 32

// dcPort is the DC initiators of a port, which all of its endpoints share. A
// request waits with its endpoint until the pool gives that an initiator.
type dcPort struct {
	t      *Transport
	driver *mlx5

	// mu guards the pool, the initiators' requests and the endpoints' queues.
	// Posting under it does not block: it rings the device's bell. It comes
	// after side.mu and poll.mu, and before none.
	mu   sync.Mutex
	pool *dcPool

	lost               bool // under mu
	dcis               []*initiator
	failures, numReset atomic.Uint64
}

// initiator is one DCI.
type initiator struct {
	qp libibverbs.QP
	wr *libibverbs.Initiator

	// changing is held while the state of qp is changed. It comes before mu.
	changing sync.Mutex
	gone     bool // qp is destroyed
}

// openDC makes the initiators. What is returned has to be closed even if that
// failed.
func (t *Transport) openDC(driver *mlx5) (*dcPort, error) {
	d := &dcPort{t: t, driver: driver, pool: newDCPool(t.config.NumDCIs, dcQuota)}
	for range t.config.NumDCIs {
		qp, err := driver.createInitiator()
		if err != nil {
			return d, err
		}
		i := &initiator{qp: qp}
		d.dcis = append(d.dcis, i)
		if err = take(driver, qp, t.initiatorSteps()); err != nil {
			return d, err
		}
		if i.wr, err = driver.Initiator(qp); err != nil {
			return d, err
		}
	}
	return d, nil
}

// closeDC destroys the initiators.
func (t *Transport) closeDC() error {
	if t.dcPort == nil {
		return nil
	}
	return t.dcPort.close()
}

func (d *dcPort) close() (err error) {
	for _, i := range d.dcis {
		err = errors.Join(err, i.destroy(d.t))
	}
	return err
}

func (i *initiator) destroy(t *Transport) error {
	i.changing.Lock()
	defer i.changing.Unlock()
	if i.gone {
		return nil
	}
	if err := t.gone(t.lib.DestroyQP(i.qp)); err != nil {
		return err
	}
	i.gone = true
	return nil
}

// works is whether an initiator is left.
func (d *dcPort) works() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.pool.broken()
}

// find is the number of an initiator; -1: it is none.
func (d *dcPort) find(qp libibverbs.QP) int {
	if d == nil {
		return -1
	}
	for on, i := range d.dcis {
		if i.qp == qp {
			return on
		}
	}
	return -1
}

// dcAfter is what has to be done when no lock is held.
type dcAfter struct {
	reset int       // an initiator to be reset; -1: none
	fail  *endpoint // nil: none
	why   error
}

// post hands over what waits of an endpoint, as far as the pool lets it. Under
// mu.
func (d *dcPort) post(e *endpoint) dcAfter {
	q := &e.dc.queue
	on, n, err := -1, 0, error(nil)
	for n < q.len() {
		at, ok, postErr := d.pool.post(e.dc.peer)
		if err = postErr; !ok {
			break
		}
		if on < 0 {
			on = at
			d.dcis[on].wr.Begin()
		}
		d.dcis[on].wr.Add(e.send.sendWR(q.at(n)), &e.dc.to)
		n++
	}
	if on < 0 {
		return dcAfter{reset: -1, fail: failing(e, err), why: err}
	}
	if errno := d.dcis[on].wr.End(); errno != 0 {
		return d.refused(e, on, n, fmt.Errorf("post on %s: %w", d.t.device, errno))
	}
	q.drop(n)
	return dcAfter{reset: -1, fail: failing(e, err), why: err}
}

func failing(e *endpoint, err error) *endpoint {
	if err == nil {
		return nil
	}
	return e
}

// refused takes back a batch that an initiator has not taken.
func (d *dcPort) refused(e *endpoint, on, n int, err error) dcAfter {
	d.failures.Add(1)
	after := dcAfter{reset: -1, fail: e, why: err}
	if d.pool.refused(on, n) {
		after.reset = on
	}
	return after
}

// serve posts what waits of a peer that was given an initiator. Under mu.
func (d *dcPort) serve(granted *dcPeer) dcAfter {
	if granted == nil {
		return dcAfter{reset: -1}
	}
	return d.post(granted.end)
}

// do does what is left to do. No lock is held.
func (d *dcPort) do(after dcAfter) {
	if after.fail != nil {
		after.fail.fail(d.t.Device() + ": " + after.why.Error())
		_ = after.fail.flush() // Retire does it again, and reports
	}
	if after.reset >= 0 {
		d.t.resetDCI(after.reset)
	}
}

// endedDC notes the end of a request of an endpoint, under poll.mu.
func (t *Transport) endedDC(e *endpoint, ok bool) {
	d, p := t.dcPort, &t.poll
	d.mu.Lock()
	defer d.mu.Unlock()
	on := e.dc.peer.dci
	if on < 0 {
		return
	}
	if !ok && d.pool.dcis[on].state == dciUsable {
		d.failures.Add(1)
	}
	granted, reset := d.pool.completed(on, ok)
	if reset {
		p.resets = append(p.resets, on)
	}
	after := d.serve(granted)
	if after.fail != nil && after.fail.fail(t.Device()+": "+after.why.Error()) {
		p.failed = append(p.failed, after.fail)
	}
	if after.reset >= 0 {
		p.resets = append(p.resets, after.reset)
	}
}

// resetDCI brings an initiator back that is drained. No lock is held.
func (t *Transport) resetDCI(on int) {
	d := t.dcPort
	after, abandoned := d.reset(on)
	for _, peer := range abandoned {
		d.do(dcAfter{reset: -1, fail: peer.end, why: errNoDCI})
	}
	d.do(after)
}

func (d *dcPort) reset(on int) (after dcAfter, abandoned []*dcPeer) {
	i := d.dcis[on]
	i.changing.Lock()
	defer i.changing.Unlock()
	if i.gone {
		return dcAfter{reset: -1}, nil
	}
	err := take(d.driver, i.qp, d.t.resetSteps())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost {
		err = errNoDCI
	}
	if err == nil {
		d.numReset.Add(1)
	}
	granted, abandoned := d.pool.reset(on, err)
	return d.serve(granted), abandoned
}

// cut makes the device return what an endpoint has outstanding. No lock is
// held but the endpoint's.
func (d *dcPort) cut(e *endpoint) error {
	d.mu.Lock()
	on, granted := d.pool.cut(e.dc.peer)
	after := d.serve(granted)
	d.mu.Unlock()
	if after.fail != nil || after.reset >= 0 {
		defer d.do(after)
	}
	if on < 0 {
		return nil
	}
	i := d.dcis[on]
	i.changing.Lock()
	defer i.changing.Unlock()
	d.mu.Lock()
	still := e.dc.peer.dci == on // else all has ended meanwhile
	d.mu.Unlock()
	if i.gone || !still {
		return nil
	}
	return d.driver.modify(i.qp, &libibverbs.QPAttr{QPState: libibverbs.QPStateErr}, libibverbs.QPState)
}

// failDCI notes that an initiator has failed by itself. It serves one peer at
// most, which fails with it.
func (t *Transport) failDCI(on int, detail string) {
	d := t.dcPort
	d.mu.Lock()
	i := &d.pool.dcis[on]
	d.failures.Add(1)
	peer, idle := i.peer, i.peer == nil && i.state == dciUsable
	if idle {
		i.state = dciResetting
	}
	d.mu.Unlock()
	switch {
	case peer != nil:
		peer.end.fail(detail)
		_ = peer.end.flush() // Retire does it again, and reports
	case idle:
		t.resetDCI(on)
	}
}

// abandonDC destroys the initiators of a device that gives no more completions.
func (t *Transport) abandonDC() {
	d := t.dcPort
	if d == nil {
		return
	}
	d.mu.Lock()
	d.lost = true
	d.pool.lost() // before: nothing is posted any more
	d.mu.Unlock()
	_ = d.close() // what is left stays with the device
}

// dcQueue is the slots of requests that wait for an initiator, the oldest
// first.
type dcQueue struct {
	ring        []uint16
	first, next uint64
}

func (q *dcQueue) len() int { return int(q.next - q.first) }

func (q *dcQueue) at(n int) int { return int(q.ring[(q.first+uint64(n))%uint64(len(q.ring))]) }

func (q *dcQueue) push(slot int) {
	q.ring[q.next%uint64(len(q.ring))] = uint16(slot)
	q.next++
}

func (q *dcQueue) drop(n int) { q.first += uint64(n) }
