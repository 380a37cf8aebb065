//lint:file-ignore U1000 the lines of the edits use what is here

package endpoint

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// mutant is a defect that TestMutants puts in, to show that it would be found.
type mutant uint8

const (
	sound              mutant = iota
	reclaimOnInsert           // nothing but an insert reclaims
	capByList                 // the cap counts live connections only
	noGeneration              // references are good for whatever has the entry
	checkThenAllocate         // a place is counted when its queue pair is there
	destroyOutstanding        // a queue pair is destroyed with requests outstanding
	joinUnseen                // connects to an address that was not meant for us
	postUnready               // live before the peer has said that it is ready
	lockedCalls               // the transport is called under the lock
	forgetGens                // a peer that was forgotten is told of generations from before
	neverForget               // a peer that was known once is known for ever
	countEarly                // completions count before they were handled
	formerLife                // what was said of a former life of ours counts
	lookOnce                  // posts on what was retired since it was found
	countOutstanding          // what has outstanding completions counts as room to come
	noSpare                   // what was evicted for one peer is not another's
	numMutants
)

// planted is the mutant that is in force now, in a build that has them: the lines of
// the edits ask for it.
var planted atomic.Uint32

func plant(m mutant) { planted.Store(uint32(m)) }

func hasMutant(m mutant) bool { return mutant(planted.Load()) == m }

// mutants are the defects of this package, each with a check that is quick to
// find it: what is sound passes them all.
var mutants = []struct {
	name   string
	mutant mutant
	check  func(m mutant, seed uint64) error
}{
	{"reclaim only on insert", reclaimOnInsert, checkReclaim},
	{"cap by list length", capByList, checkCapCountsRetiring},
	{"no generation", noGeneration, checkRetired},
	{"check then allocate", checkThenAllocate, checkReserve},
	{"destroy what has outstanding completions", destroyOutstanding, checkOutstanding},
	{"count before handling", countEarly, checkHeld},
	{"join an address that was not meant", joinUnseen, checkUnseen},
	{"live before the peer is", postUnready, checkReady},
	{"provider calls under the lock", lockedCalls, checkUnlocked},
	{"generations that begin anew", forgetGens, checkForgotten},
	{"peers that are never forgotten", neverForget, checkForgotten},
	{"handshakes to a former life", formerLife, checkFormerLife},
	{"posts without a second look", lookOnce, checkKeep},
	{"room that has outstanding completions counts", countOutstanding, checkOutstandingRoom},
	{"room for one peer is not another's", noSpare, checkSpare},
}

var mutantEdits = []testenv.Edit{
	{"store.go", "\tif len(s.vacant) == 0 {\n\t\treturn none, false", "\tif hasMutant(reclaimOnInsert) {\n\t\ts.reclaimNow()\n\t}\n\ts.insert()\n\tif len(s.vacant) == 0 {\n\t\treturn none, false"},
	{"reclaim.go", "func (s *Store) reclaim() {", "func (s *Store) reclaim() {\n\tif !hasMutant(reclaimOnInsert) {\n\t\ts.reclaimNow()\n\t}\n}\n\nfunc (s *Store) reclaimNow() {"},
	{"reclaim.go", "if !e.drained() {", "if !e.drained() && !hasMutant(destroyOutstanding) {"},
	{"reclaim.go", "\tif !e.busy { // else", "\tif hasMutant(lockedCalls) && e.ep != nil {\n\t\t_ = e.ep.Retire()\n\t}\n\tif !e.busy { // else"},
	{"reclaim.go", "s.nextGen()", "s.genOf(p)"},
	{"peers.go", "p.gen = s.nextGen()", "p.gen = s.genOf(p)"},
	{"peers.go", "if p == nil {\n\t\treturn false", "if p == nil || hasMutant(neverForget) {\n\t\treturn false"},
	{"poll.go", "\t\ts.account(done[:n])\n", "\t\tif !hasMutant(countEarly) {\n\t\t\ts.account(done[:n])\n\t\t}\n"},
	{"poll.go", "\t\tif handle != nil {", "\t\tif hasMutant(countEarly) {\n\t\t\ts.account(done[:n])\n\t\t}\n\t\tif handle != nil {"},
	{"room.go", "\t\t\treturn until\n\t\t}\n", "\t\t\treturn until\n\t\t}\n\t\tif hasMutant(countOutstanding) && s.stats.Retiring+s.tasks.destroying >= n {\n\t\t\treturn now.Add(s.evictFor())\n\t\t}\n"},
	{"room.go", "if s.isLeaving(p.evicted) {\n\t\ts.room.spare", "if s.isLeaving(p.evicted) && !hasMutant(noSpare) {\n\t\ts.room.spare"},
	{"pair.go", "s.nextGen()", "s.genOf(p)"},
	{"pair.go", "if n.SeenEpoch == s.cfg.Epoch &&", "if (n.SeenEpoch == s.cfg.Epoch || hasMutant(formerLife)) &&"},
	{"pair.go", "> 0 && p.theirs.seen:", "> 0 && (p.theirs.seen || hasMutant(joinUnseen)):"},
	{"pair.go", "== joined && p.theirs.ready:", "== joined && (p.theirs.ready || hasMutant(postUnready)):"},
	{"entry.go", "if uint32(word>>8) != r.gen {", "if uint32(word>>8) != r.gen && !hasMutant(noGeneration) {"},
	{"entry.go", "if s.entryOf(r, from, to) != e {", "if s.entryOf(r, from, to) != e && !hasMutant(lookOnce) {"},
}

// insert makes a place that there should not be.
func (s *Store) insert() {
	if len(s.vacant) == 0 && s.overshoots() {
		s.grow()
	}
}

// overshoots is for mutants that have no bound.
func (s *Store) overshoots() bool {
	switch {
	case hasMutant(capByList):
		return s.stats.Live < s.cfg.Cap
	case hasMutant(checkThenAllocate):
		return int(s.stats.Made-s.stats.Destroyed) < s.cfg.Cap
	}
	return false
}

// grow is for these, too.
func (s *Store) grow() {
	s.entries = append(s.entries, newEntry())
	s.vacant = append(s.vacant, int32(len(s.entries)-1))
	s.live.next, s.live.prev = append(s.live.next, none), append(s.live.prev, none)
}

func (s *Store) genOf(p *pair) uint64 {
	gen := s.nextGen()
	if hasMutant(forgetGens) {
		gen = p.gen + 1
	}
	return gen
}

// TestMutants: each of these defects is found, and nothing is found without.
func TestMutants(t *testing.T) {
	if !testenv.Mutants(t, mutantEdits...) {
		return
	}
	seed := seedOf(t)
	require.Len(t, mutants, int(numMutants-1))
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			plant(sound)
			require.NoError(t, m.check(sound, seed))
			plant(m.mutant)
			err := m.check(m.mutant, seed)
			require.Error(t, err)
			t.Logf("%.150v", err)
		})
	}
}

// waitFor is how long a check waits for what a mutant may never do.
func waitFor(m mutant) time.Time {
	if m == sound {
		return soon()
	}
	return time.Now().Add(400 * time.Millisecond)
}

func until(end time.Time, is func() bool) bool {
	for !is() {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(100 * time.Microsecond)
	}
	return true
}

// pause stops the node's poller: completions stay where they are until it goes
// on.
func (nd *node) pause() (goOn func()) {
	close(nd.stop)
	<-nd.ended
	return func() {
		nd.stop, nd.ended = make(chan struct{}), make(chan struct{})
		go nd.poll(nd.now(), nd.stop, nd.ended)
	}
}

// stalled is a world; its first node has retired a connection that has outstanding
// completions until it goes on.
func stalled(m mutant, seed uint64, bound int) (w *world, goOn func(), err error) {
	w = brokenWorld(m, seed, 3, fake.Config{}, func(c *Config) { c.Cap = bound })
	a := w.nodes[0]
	r, err := a.now().Wait(1, waitFor(m))
	goOn = a.pause()
	a.now().Retire(r)
	return w, goOn, err
}

// checkReclaim (ES2): a retired endpoint goes, though no pair inserts any more.
func checkReclaim(m mutant, seed uint64) error {
	w := brokenWorld(m, seed, 2, fake.Config{}, nil)
	a := w.nodes[0]
	r, err := a.now().Wait(1, waitFor(m))
	if err == nil {
		a.now().Retire(r)
		if !until(waitFor(m), func() bool { return a.dev.Counts().QueuePairs == 0 && a.now().Stats().Retiring == 0 }) {
			err = fmt.Errorf("without an insert nothing was reclaimed: %+v", a.now().Stats())
		}
	}
	return errors.Join(err, w.close())
}

// checkCapCountsRetiring (ES1): what is retired and not gone yet counts.
func checkCapCountsRetiring(m mutant, seed uint64) error {
	w, goOn, err := stalled(m, seed, 1)
	a := w.nodes[0]
	for range 20 {
		if _, get := a.now().Get(2); err == nil && !errors.Is(get, transport.ErrWouldBlock) {
			err = fmt.Errorf("at the cap: %w", get)
		}
		time.Sleep(100 * time.Microsecond)
	}
	goOn()
	return errors.Join(err, w.closeFor(1))
}

// checkReserve (ES1): a place is taken before a queue pair is made.
func checkReserve(m mutant, seed uint64) error {
	w := brokenWorld(m, seed, 6, fake.Config{}, func(c *Config) { c.Cap, c.NumTasks = 2, 8 })
	a, gate, refused := w.nodes[0], fake.NewGate(), 0
	stuck := w.net.Inject(fake.Fault{Point: fake.AtCreate, Transport: a.dev, Gate: gate})
	for to := Peer(1); to < 6; to++ {
		if _, err := a.now().Get(to); errors.Is(err, transport.ErrWouldBlock) {
			refused++
		}
	}
	stuck.Remove()
	gate.Open()
	err := w.closeFor(2)
	if refused != 3 {
		err = errors.Join(err, fmt.Errorf("%d of 5 were refused at a cap of 2", refused))
	}
	return err
}

// checkOutstanding (ES6): a queue pair lives until its last completion was handled.
func checkOutstanding(m mutant, seed uint64) error {
	w, goOn, err := stalled(m, seed, 2)
	a, end := w.nodes[0], time.Now().Add(10*time.Millisecond)
	if m != sound {
		end = waitFor(m)
	}
	until(end, func() bool {
		a.now().Tick() // it must not reclaim
		return a.dev.Counts().QueuePairsDestroyed > 0
	})
	goOn()
	return errors.Join(err, w.closeFor(2))
}

// checkHeld (ES6): a queue pair lives while the poller has one of its
// completions, though the device has none of its requests left.
func checkHeld(m mutant, seed uint64) error {
	w := brokenWorld(m, seed, 2, fake.Config{}, nil)
	a := w.nodes[0]
	r, err := a.now().Wait(1, waitFor(m))
	goOn := a.pause()
	sends := make([]transport.SendRequest, 1+seed%5)
	for i := range sends {
		sends[i].Op = transport.OpSend
	}
	if n, post := a.now().PostSend(r, sends); n != len(sends) {
		err = errors.Join(err, fmt.Errorf("post: %w", post))
	}
	a.now().Retire(r)
	early := false
	a.seen = func([]transport.Completion) {
		for range 5 {
			a.now().Tick()
			time.Sleep(time.Millisecond) // for tasks
		}
		early = early || a.dev.Counts().QueuePairsDestroyed > 0
	}
	goOn()
	gone := until(waitFor(m), func() bool { return a.dev.Counts().QueuePairs == 0 })
	err = errors.Join(err, w.close())
	switch {
	case early:
		err = errors.Join(err, errors.New("destroyed while completions were being handled"))
	case !gone:
		err = errors.Join(err, errors.New("never destroyed"))
	}
	return err
}

// checkUnlocked (ES10): the device looks at each call whether the store's lock
// is free.
func checkUnlocked(m mutant, seed uint64) error {
	w := brokenWorld(m, seed, 2, fake.Config{}, nil)
	a := w.nodes[0].now()
	r, err := a.Wait(1, waitFor(m))
	a.Retire(r)
	return errors.Join(err, w.close())
}

// checkKeep (ES6, ES8): a post that has found a connection which is retired before
// it counts takes nothing, and leaves no count.
func checkKeep(m mutant, seed uint64) error {
	w := brokenWorld(m, seed, 2, fake.Config{}, nil)
	a := w.nodes[0]
	r, err := a.now().Wait(1, waitFor(m))
	if err != nil {
		return errors.Join(err, w.close())
	}
	goOn := a.pause() // what is outstanding keeps the connection where it is
	e := a.now().entries[r.index]
	a.now().Retire(r)
	before := e.posted.Load()
	if a.now().keep(e, r, live, live, 1) {
		err = errors.New("a retired connection takes a post")
		a.now().unhold(e, 1)
	}
	if n := e.posted.Load(); n != before {
		err = errors.Join(err, fmt.Errorf("%d requests count, of %d", n, before))
	}
	goOn()
	return errors.Join(err, w.close())
}

// checkFormerLife (ES13): that a peer has seen an endpoint of a former life of
// ours says nothing of the present one, though their generations are the same.
func checkFormerLife(m mutant, seed uint64) error {
	s, theirs, handshakes, err := lone(seed)
	if err != nil {
		return err
	}
	defer s.Close(soon())
	if _, err := s.Get(1); !errors.Is(err, ErrConnecting) {
		return err
	}
	ours, err := nextHandshake(handshakes)
	if err != nil {
		return err
	}
	said := Handshake{Epoch: 1, Gen: 5, Address: theirs, SeenEpoch: ours.Epoch - 1, SeenGen: ours.Gen, Ready: true}
	s.Deliver(1, said)
	s.mu.Lock()
	p := s.pairs[1]
	counts := p.theirs.seen || p.theirs.ready || s.entries[p.index].state() != offered
	s.mu.Unlock()
	if counts {
		return errors.New("a handshake to a former life counts")
	}
	said.SeenEpoch = ours.Epoch
	s.Deliver(1, said)
	_, err = s.Wait(1, waitFor(m))
	return err
}
