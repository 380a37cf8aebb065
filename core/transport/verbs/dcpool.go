package verbs

import "errors"

// dcPool shares a few initiators out among many peers. It only decides; its user posts,
// polls and resets as it says. For one goroutine at a time.
//
// An initiator serves one peer at a time, so that a request which fails flushes no other
// peer's. A peer keeps its initiator while it has requests outstanding. While others
// wait, it may post quota more, and then waits behind them; so no peer keeps one for
// itself. After a failure, the initiator is drained and reset, and only then serves a
// peer that waits.
type dcPool struct {
	quota   int
	dcis    []dci
	waiting []*dcPeer // the longest first
}

// dci is one initiator.
type dci struct {
	peer        *dcPeer // that it serves; nil: none
	outstanding int
	left        int // that the peer may still post while others wait
	state       dciState
}

type dciState uint8

const (
	dciUsable    dciState = iota
	dciDraining           // a request has failed: what is outstanding is flushed
	dciResetting          // drained; the pool's user resets it
	dciBroken             // it could not be reset
)

// dcPeer is a peer of a pool.
type dcPeer struct {
	end    *endpoint // the endpoint of the peer; nil in tests of the pool
	dci    int       // that serves it, -1: none
	wants  bool
	failed bool
}

func newDCPeer() *dcPeer { return &dcPeer{dci: -1} }

// errNoDCI: no initiator is left. Peers have to be reached in another way.
var errNoDCI = errors.New("no DC initiator works any more")

// errDCPeer: a request to the peer has failed.
var errDCPeer = errors.New("DC: a request to the peer has failed")

func newDCPool(numDCIs, quota int) *dcPool {
	return &dcPool{quota: quota, dcis: make([]dci, numDCIs)}
}

// post asks where a peer's next request may be posted; the caller posts it
// then. ok is false if it has to wait: grants say when not.
func (p *dcPool) post(peer *dcPeer) (on int, ok bool, err error) {
	switch {
	case peer.failed:
		return 0, false, errDCPeer
	case p.broken():
		return 0, false, errNoDCI
	}
	if peer.dci < 0 && !peer.wants {
		p.assign(peer)
	}
	if peer.dci < 0 || p.dcis[peer.dci].state != dciUsable || !p.mayPost(peer.dci) {
		p.wait(peer)
		return 0, false, nil
	}
	d := &p.dcis[peer.dci]
	d.outstanding++
	if len(p.waiting) > 0 {
		d.left--
	}
	return peer.dci, true, nil
}

// mayPost is whether the peer of an initiator may keep it a little longer.
func (p *dcPool) mayPost(on int) bool {
	return len(p.waiting) == 0 || p.dcis[on].left > 0
}

// assign gives a peer an initiator that serves none, if no peer waits longer.
func (p *dcPool) assign(peer *dcPeer) {
	if len(p.waiting) > 0 {
		return
	}
	for i := range p.dcis {
		if p.dcis[i].peer == nil && p.dcis[i].state == dciUsable {
			p.serve(i, peer)
			return
		}
	}
}

func (p *dcPool) serve(i int, peer *dcPeer) {
	p.dcis[i].peer, p.dcis[i].left = peer, p.quota
	peer.dci, peer.wants = i, false
}

func (p *dcPool) wait(peer *dcPeer) {
	if !peer.wants {
		peer.wants = true
		p.waiting = append(p.waiting, peer)
	}
}

// completed notes that a request on an initiator has ended, and how. It returns
// the peer that has an initiator now and had none, if there is one, and whether
// the initiator is to be reset: the caller does that and says reset.
func (p *dcPool) completed(on int, ok bool) (granted *dcPeer, reset bool) {
	d := &p.dcis[on]
	d.outstanding--
	if !ok && d.state == dciUsable {
		d.state = dciDraining
		if d.peer != nil {
			p.fail(d.peer)
		}
	}
	if d.outstanding > 0 {
		return nil, false
	}
	p.release(on)
	if d.state == dciDraining {
		d.state = dciResetting
		return nil, true
	}
	return p.grant(on), false
}

func (p *dcPool) release(on int) {
	d := &p.dcis[on]
	if d.peer != nil {
		d.peer.dci = -1
		d.peer = nil
	}
}

// leave is for a peer that will post nothing more, though it waits or was
// granted an initiator.
func (p *dcPool) leave(peer *dcPeer) (granted *dcPeer) {
	on := peer.dci
	p.fail(peer)
	if on < 0 || p.dcis[on].outstanding > 0 {
		return nil
	}
	p.release(on)
	return p.grant(on)
}

// cut is leave for a peer that may have requests outstanding. on is then its
// initiator, which returns them once it was moved to its error state; -1: it
// has none. Completions and a reset follow as after a failure.
func (p *dcPool) cut(peer *dcPeer) (on int, granted *dcPeer) {
	on = peer.dci
	if on < 0 || p.dcis[on].outstanding == 0 {
		return -1, p.leave(peer)
	}
	p.fail(peer)
	if p.dcis[on].state == dciUsable {
		p.dcis[on].state = dciDraining
	}
	return on, nil
}

// refused takes back the last n posts on an initiator, which it has not taken.
// reset is as of completed.
func (p *dcPool) refused(on, n int) (reset bool) {
	d := &p.dcis[on]
	d.outstanding -= n
	d.state = dciDraining
	p.fail(d.peer)
	if d.outstanding > 0 {
		return false
	}
	p.release(on)
	d.state = dciResetting
	return true
}

// lost ends all initiators at once: their device is gone.
func (p *dcPool) lost() {
	for i := range p.dcis {
		p.dcis[i].state = dciBroken
	}
	p.waiting = nil
}

// fail ends a peer: what of it waits, too.
func (p *dcPool) fail(peer *dcPeer) {
	peer.failed = true
	for i, w := range p.waiting {
		if w == peer {
			p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
			peer.wants = false
			return
		}
	}
}

// grant gives a free initiator to the peer that has waited longest.
func (p *dcPool) grant(on int) *dcPeer {
	if len(p.waiting) == 0 {
		return nil
	}
	peer := p.waiting[0]
	p.waiting = p.waiting[:copy(p.waiting, p.waiting[1:])]
	p.serve(on, peer)
	return peer
}

// reset notes how the reset of a drained initiator ended. granted is as of
// completed; abandoned are those that wait, when none works any more.
func (p *dcPool) reset(on int, err error) (granted *dcPeer, abandoned []*dcPeer) {
	d := &p.dcis[on]
	if err == nil {
		d.state = dciUsable
		return p.grant(on), nil
	}
	d.state = dciBroken
	if p.broken() {
		abandoned, p.waiting = p.waiting, nil
	}
	return nil, abandoned
}

func (p *dcPool) broken() bool {
	for i := range p.dcis {
		if p.dcis[i].state != dciBroken {
			return false
		}
	}
	return true
}
