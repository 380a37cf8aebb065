package cpu_test

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/membership"
)

// orders are what a rendezvous decides.
type orders struct {
	epoch membership.Epoch
	base  uint64
}

// install begins the epoch that a rendezvous has decided on.
func (a *actor) install() error {
	if a.orders == nil {
		return nil
	}
	o := *a.orders
	a.orders = nil
	a.begin(fmt.Sprintf(" install %d from %d", o.epoch, o.base))
	err := a.buf.Install(o.epoch, o.base, nil)
	if err != nil && !errors.Is(err, ep.ErrFenced) {
		err = fmt.Errorf("%s: install: %w", a.name, err)
	}
	return err
}

// meet ends an actor's part in its epoch and waits for the next. False: there
// is none for it.
func (a *actor) meet() bool {
	sc := a.scene
	sc.left[sc.epoch()], a.leaving = true, true
	a.st.note(a, atCall, " prepare")
	st, err := a.buf.Prepare()
	if err != nil {
		a.st.failed(fmt.Errorf("%s: prepare: %w", a.name, err))
		return false
	}
	if sc.holders[a.rank] != a {
		return false // a new process has its number
	}
	a.rendezvous = st
	a.state = atRendezvous
	a.st.pass(a)
	return a.orders != nil
}

// convene holds the rendezvous when all ranks that it waits for have come.
func (sc *scene) convene() bool {
	came := 0
	for _, a := range sc.holders {
		switch {
		case a.state == atRendezvous:
			came++
		case a.state == dead || a.state == finished:
		case a.skip && (a.state == frozen || a.slow > sc.st.now):
		default:
			return false
		}
	}
	if came == 0 || sc.numRendezvous == 0 {
		return false
	}
	sc.hold()
	return true
}

// hold decides which ranks form the next epoch, and begins it.
func (sc *scene) hold() {
	sc.numRendezvous--
	sc.epochs++
	sc.stats.numRendezvous++
	o := &orders{}
	var set []*actor
	for _, a := range sc.holders {
		if a.state == atRendezvous && (len(set) == 0 || !a.fenced || sc.rng.IntN(4) > 0) {
			set = append(set, a)
			o.epoch, o.base = max(o.epoch, a.rendezvous.Epoch), max(o.base, a.rendezvous.Next)
		}
	}
	sc.stats.returned += len(set)
	o.epoch = max(o.epoch, sc.decided) + 1 // no two rendezvous decide on one epoch
	sc.decided = o.epoch
	sc.begin(o, append(set, sc.joiners(set)...))
}

// joiners makes new processes for some of the ranks that have not come.
func (sc *scene) joiners(set []*actor) (fresh []*actor) {
	for r, a := range sc.holders {
		if isIn(set, a) {
			continue
		}
		if a.state != dead && a.state != atRendezvous && a.state != finished {
			sc.stats.skipped++
		}
		if sc.rng.IntN(3) == 0 {
			sc.stats.absent++
			continue
		}
		sc.stats.fresh++
		fresh = append(fresh, sc.enter(r))
		if a.state == atRendezvous {
			a.state = runnable // without orders: it closes
		}
	}
	return fresh
}

func isIn(set []*actor, a *actor) bool {
	for _, o := range set {
		if o == a {
			return true
		}
	}
	return false
}

// begin gives every rank in the set the same view, script and orders.
func (sc *scene) begin(o *orders, set []*actor) {
	view := make([]*incarnation, sc.shape.ranks)
	for _, a := range set {
		view[a.rank] = a.inc
	}
	acts := sc.script()
	sc.connect(view)
	for _, a := range set {
		fresh := a.buf == nil
		a.dom.view = view
		a.orders = o
		sc.cast(a, acts)
		if !fresh {
			a.state = runnable
			continue
		}
		sc.makeBuffer(a, true)
		if !sc.single {
			a.plan = sc.someFaults()
		}
		sc.st.spawn(a, a.playAll)
	}
}
