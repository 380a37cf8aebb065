package cpu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

const (
	pollInterval = time.Millisecond
	deadline     = 25 * time.Millisecond // of most calls
)

// scene is one schedule: a group, what it plays and what goes wrong.
type scene struct {
	st            *stage
	rng           *rand.Rand
	single        bool // one fault, which one rank must pay for
	shape         shape
	lay           layout.Slab
	flat          flatShape // of the flat operations
	flatLay       layout.Slab
	slots         int
	fill          bool
	ordered       bool
	members       atomic.Uint64
	holders       []*actor         // the latest incarnation of each rank
	numRendezvous int              // still to come
	ahead         int              // a rank that cancels whatever it begins; -1: none
	decided       membership.Epoch // epoch of the last rendezvous
	left          map[membership.Epoch]bool
	epochs        int
	seen          membership.Members // the members word, as last seen
	losses        int                // of ranks that were members, for any reason
	lost          int                // of them, those that had the one fault
	stats         *playStats
	hosts         []int // of the ranks; nil: all are on one
	longest       int64 // bytes of a message between hosts
	underWay      int   // messages of a rank to another one, at most
}

// playStats adds up what many schedules did.
type playStats struct {
	schedules, steps, single, singleLost            int
	dispatches, combines, cancelled, fenced         int
	flat                                            int // of the combines
	numRendezvous, returned, fresh, absent, skipped int
	notCombined, slabs, incarnations, maxSlabs      int
	struck                                          struck
}

func newScene(seed uint64, stats *playStats) *scene {
	rng := rand.New(rand.NewPCG(seed, 2))
	ranks, slots := 2+rng.IntN(3), 1+rng.IntN(2)
	sc := &scene{
		st: newStage(rand.New(rand.NewPCG(seed, 3))), rng: rng, single: rng.IntN(3) == 0,
		shape: shape{
			ranks: ranks, maxTokens: 1 + rng.IntN(3), hidden: 8,
			experts: ranks * (1 + rng.IntN(2)), topk: 1 + rng.IntN(3),
		},
		slots: slots, fill: rng.IntN(2) == 0, ordered: rng.IntN(3) == 0, holders: make([]*actor, ranks),
		ahead: rng.IntN(6*ranks) - 5*ranks, numRendezvous: rng.IntN(3), left: map[membership.Epoch]bool{}, stats: stats,
	}
	sc.flat = flatShape{shape: sc.shape, extra: [protocol.NumExtras]int{rng.IntN(2) * 3}}
	sc.layOut()
	sc.members.Store(uint64(membership.Full(1, ranks)))
	sc.seen = membership.Members(sc.members.Load())
	sc.st.watch, sc.st.convene = sc.watch, sc.convene
	return sc
}

func (sc *scene) layOut() {
	packed := layout.Shape{
		MaxTokens: int64(sc.shape.maxTokens), Hidden: int64(sc.shape.hidden),
		NumExperts: int64(sc.shape.experts), NumRanks: int64(sc.shape.ranks),
	}
	flat := packed
	flat.Flat = true
	k := int64(sc.shape.topk)
	flat.Columns = [layout.NumColumns]int64{8 * k, 4 * k, int64(sc.flat.extra[0])}
	for shape, lay := range map[layout.Shape]*layout.Slab{packed: &sc.lay, flat: &sc.flatLay} {
		var err error
		if *lay, err = layout.Of(shape); err != nil {
			panic(err)
		}
	}
	if sc.flatLay.RowsOff != sc.lay.RowsOff || sc.flatLay.YOff != sc.lay.YOff {
		panic("flat rows lie elsewhere than packed ones")
	}
}

// play runs the schedule and reports what was wrong with it.
func (sc *scene) play() error {
	view := make([]*incarnation, sc.shape.ranks)
	for r := range view {
		sc.enter(r)
		view[r] = sc.holders[r].inc
	}
	acts := sc.script()
	sc.connect(view)
	for _, a := range sc.holders {
		a.dom.view = view
		sc.cast(a, acts)
	}
	for _, a := range sc.holders {
		sc.makeBuffer(a, false)
		sc.st.spawn(a, a.playAll)
	}
	sc.plan()
	err := sc.st.run()
	sc.count()
	if err == nil {
		err = sc.checkOutcome()
	}
	return err
}

// cast gives an actor what to play until the next rendezvous. Some leave early,
// as for an update that is not announced.
func (sc *scene) cast(a *actor, acts []sceneAct) {
	a.acts, a.last, a.quits = acts, sc.numRendezvous == 0, len(acts)
	a.fenced, a.leaving = false, false
	if !sc.single && sc.rng.IntN(4) == 0 {
		a.quits = sc.rng.IntN(len(acts) + 1)
	}
}

// plan draws the faults.
func (sc *scene) plan() {
	if sc.single {
		a := sc.holders[sc.rng.IntN(len(sc.holders))]
		kinds := []faultKind{kill, freezeVeryLong}
		a.plan = []*fault{randomFault(sc.rng, kinds[sc.rng.IntN(2)])}
		return
	}
	for _, a := range sc.holders {
		a.plan = sc.someFaults()
	}
}

func (sc *scene) someFaults() (plan []*fault) {
	for range sc.rng.IntN(4) {
		plan = append(plan, randomFault(sc.rng, faultKind(sc.rng.IntN(int(numFaultKinds)))))
	}
	return plan
}

// enter puts a new incarnation behind a rank's number.
func (sc *scene) enter(rank int) *actor {
	sc.stats.incarnations++
	in := &incarnation{st: sc.st, rank: rank}
	in.control = newControl(in)
	a := &actor{scene: sc, rank: rank, inc: in, name: fmt.Sprintf("%d.%d", rank, sc.epochs)}
	in.actor = a
	a.dom = &playedDomain{st: sc.st, inc: in, members: &sc.members, lay: &sc.lay, flat: &sc.flatLay}
	a.rng = rand.New(rand.NewPCG(sc.rng.Uint64(), uint64(rank)))
	sc.holders[rank] = a
	return a
}

func (sc *scene) makeBuffer(a *actor, joining bool) {
	b, err := sc.newBuffer(a, ep.Config{
		NumSlots: sc.slots, NumBytes: sc.lay.SizeBytes * int64(sc.slots), DebugFill: sc.fill, Deterministic: sc.ordered, Joining: joining,
	})
	if err != nil {
		panic(err)
	}
	cpu.SetClock(b, sc.st.clock)
	cpu.SetPollInterval(b, pollInterval)
	a.buf = b
	sc.addPump(a)
}

func (sc *scene) ringAll() {
	for _, a := range sc.st.actors {
		a.inc.ring()
	}
}

// watch counts the lost ranks, and sees to it that they are never all ranks.
func (sc *scene) watch() {
	now := membership.Members(sc.members.Load())
	if now == sc.seen {
		return
	}
	gone := sc.seen.Ranks()
	if now.Epoch() == sc.seen.Epoch() {
		gone = gone.Minus(now.Ranks())
		sc.checkLost(gone)
	}
	sc.losses += gone.Len()
	sc.seen = now
	if now.Ranks().Empty() && !sc.left[now.Epoch()] {
		sc.st.failed(errors.New("all ranks have been fenced"))
	}
}

// checkLost checks that only the cause of a delay is lost.
func (sc *scene) checkLost(gone rankset.Set) {
	if !sc.single {
		return
	}
	for r := range gone.All() {
		switch a := sc.holders[r]; {
		case a.leaving:
		case a.hit:
			sc.lost++
		default:
			sc.st.failed(fmt.Errorf("%s was lost for another rank's fault", a.name))
		}
	}
}

// epoch looks at the members word, on behalf of the test.
func (sc *scene) epoch() membership.Epoch { return membership.Members(sc.members.Load()).Epoch() }

// checkOutcome looks at the whole schedule: the ranks that are left, and what it cost.
func (sc *scene) checkOutcome() error {
	for _, a := range sc.st.actors {
		// Each loss may cost each slot one slab, in each epoch.
		if most := sc.slots * (1 + sc.losses); len(a.inc.slabs) > most {
			return fmt.Errorf("%s has %d slabs, at most %d are needed for %d losses", a.name, len(a.inc.slabs), most, sc.losses)
		}
		if a.main == nil && (a.state == asleep || a.state == frozen || a.state == runnable) {
			return fmt.Errorf("%s has not come to an end", a.name)
		}
	}
	return nil
}

func (sc *scene) count() {
	t := sc.stats
	t.schedules++
	t.steps += sc.st.steps
	if sc.single {
		t.single++
		t.singleLost += sc.lost
	}
	for _, a := range sc.st.actors {
		if a.main != nil {
			continue
		}
		t.slabs += len(a.inc.slabs)
		t.maxSlabs = max(t.maxSlabs, len(a.inc.slabs))
	}
}

var _ domain.Process = (*incarnation)(nil)
