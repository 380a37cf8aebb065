package endpoint

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

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

// TestMutants: each of these defects is found, and nothing is found without.
func TestMutants(t *testing.T) {
	seed := seedOf(t)
	require.Len(t, mutants, int(numMutants-1))
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			require.NoError(t, m.check(sound, seed))
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
	return time.Now().Add(time.Second)
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

// stalled is a world whose first node has retired a connection that has outstanding
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
	s, theirs, handshakes, err := lone(m, seed)
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
