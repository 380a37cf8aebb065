package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// actor works on one fabric of a storm, in memory of its own on both sides.
type actor struct {
	w        *world
	self     endpoint.Peer
	peer     endpoint.Peer
	rng      *rand.Rand
	mine     []byte
	region   RegionID
	theirs   []byte
	at       transport.RemoteRegion
	numEnded int
}

const actorBytes = 600

func (w *world) actor(t *testing.T, self, peer int, rng *rand.Rand) *actor {
	a := &actor{w: w, self: endpoint.Peer(self), peer: endpoint.Peer(peer), rng: rng}
	a.mine, a.region, _ = memory(t, w.fabs[self], actorBytes)
	a.theirs, _, a.at = memory(t, w.fabs[peer], actorBytes)
	return a
}

func (a *actor) fab() *Fabric { return a.w.fabs[a.self] }

// turn makes one operation and sees it through. It returns the first broken
// promise.
func (a *actor) turn(mode Mode) error {
	r := a.draw(mode)
	fill(a.mine, byte(a.rng.Uint32()))
	fill(a.theirs, byte(a.rng.Uint32()))
	mine, theirs := bytes.Clone(a.mine), bytes.Clone(a.theirs)
	ref, err := a.post(&r)
	if err != nil {
		if !bytes.Equal(mine, a.mine) || !bytes.Equal(theirs, a.theirs) {
			return fmt.Errorf("refused (%w), and bytes have changed", err)
		}
		return acceptable(err)
	}
	if a.rng.IntN(6) == 0 {
		if _, err := a.fab().Cancel(ref); err != nil {
			return err
		}
	}
	res, err := a.see(ref)
	if err != nil {
		return err
	}
	after := bytes.Clone(a.mine)
	if res.State == op.Done && !moved(&r, mine, theirs, a) {
		return fmt.Errorf("%+v is done, and its bytes are wrong", r)
	}
	a.numEnded++
	again, err := a.fab().Look(ref)
	if err != nil || again != res {
		return fmt.Errorf("what has ended has changed: %+v, then %+v, %v", res, again, err)
	}
	if !bytes.Equal(after, a.mine) {
		return errors.New("bytes have changed after the operation was released")
	}
	return a.fab().Drop(ref)
}

func (a *actor) draw(mode Mode) Request {
	kinds := []Kind{Write, Read, WriteImm, ReceiveImm}
	if mode == Messages {
		kinds = []Kind{Write, Read, Send, Recv}
	}
	r := Request{Kind: kinds[a.rng.IntN(4)], Peer: a.peer, Imm: a.rng.Uint32()}
	if r.Kind == ReceiveImm {
		return r
	}
	r.Region, r.Bytes = a.region, a.rng.Int64N(actorBytes/2)
	r.Off = a.rng.Int64N(actorBytes - r.Bytes)
	if r.Kind == Recv {
		r.Off, r.Bytes = 0, 64
	} else if r.Kind == Send {
		r.Bytes = min(r.Bytes, 64)
	} else {
		r.Remote, r.RemoteOff = a.at, a.rng.Int64N(actorBytes-r.Bytes)
	}
	return r
}

// post asks again while a connection is being made, or a bound is reached.
func (a *actor) post(r *Request) (op.Ref, error) {
	for end := time.Now().Add(time.Second); ; time.Sleep(100 * time.Microsecond) {
		ref, err := a.fab().Post(r)
		if err == nil || time.Now().After(end) {
			return ref, err
		}
	}
}

// see waits until an operation is released. Receives may wait for ever: they
// are cancelled, and then a message's memory comes back with its connection.
func (a *actor) see(ref op.Ref) (op.Result, error) {
	for range 1000 {
		res, err := a.fab().WaitReleased(ref, time.Now().Add(30*time.Millisecond))
		if !errors.Is(err, op.ErrTimedOut) {
			return res, err
		}
		if _, err := a.fab().Cancel(ref); err != nil {
			return res, err
		}
		if a.fab().Mode() == Messages {
			a.fab().Disconnect(a.peer)
		}
	}
	return op.Result{}, errors.New("an operation was never released")
}

// acceptable are the errors that a storm may lead to.
func acceptable(err error) error {
	for _, ok := range []error{
		endpoint.ErrConnecting, endpoint.ErrUnreachable, transport.ErrWouldBlock, op.ErrWouldBlock,
		transport.ErrNoResource, ErrEnded, errStorm,
	} {
		if errors.Is(err, ok) {
			return nil
		}
	}
	return err
}

var errStorm = errors.New("the device is in a storm")

func moved(r *Request, mine, theirs []byte, a *actor) bool {
	from, to := r.Off, r.RemoteOff
	switch r.Kind {
	case Write, WriteImm:
		copy(theirs[to:to+r.Bytes], mine[from:])
	case Read:
		copy(mine[from:from+r.Bytes], theirs[to:])
	default:
		return true
	}
	return bytes.Equal(mine, a.mine) && bytes.Equal(theirs, a.theirs)
}

// TestStorm: whatever the device, the network and the couriers do, each
// operation ends once and is released (CO1, CO4, CO5), one that is done has
// moved its bytes, and in the end nothing is outstanding, in use or left (CO9).
func TestStorm(t *testing.T) {
	for _, mode := range []Mode{Immediates, Messages} {
		t.Run(mode.String(), func(t *testing.T) { storm(t, testenv.Seed(t), mode) })
	}
}

// TestStormInBubble: the same under many seeds, in bubbles with a fake clock.
func TestStormInBubble(t *testing.T) {
	seed := testenv.Seed(t)
	for i := range testenv.NumSeeds(t, 30) {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("MOEWIRE_TEST_SEED=%d", seed+i)
				}
			}()
			storm(t, seed+i, Mode(i%2))
		})
	}
}

func storm(t *testing.T, seed uint64, mode Mode) {
	const fabrics, actors, turns = 3, 3, 25
	before := runtime.NumGoroutine()
	w := newWorld(t, seed, fabrics, fake.Config{RetryTimeout: 5 * time.Millisecond, Late: fake.LateUntilStatus}, func(c *Config) {
		c.Mode, c.SliceBytes, c.NumConnections, c.SendDepth, c.RecvDepth, c.NumTransfers = mode, 64, 2, 8, 8, 32
		c.NumUnmatched = 16
	})
	w.lossy = true
	faults := []*fake.Injection{
		w.net.Inject(fake.Fault{Point: fake.AtCreate, Chance: 0.05, Err: transport.ErrNoResource}),
		w.net.Inject(fake.Fault{Point: fake.AtConnect, Chance: 0.05, Err: errStorm}),
		w.net.Inject(fake.Fault{Point: fake.AtDestroy, Chance: 0.05, Err: errStorm}),
		w.net.Inject(fake.Fault{Point: fake.AtPostSend, Chance: 0.03, Err: errStorm}),
		w.net.Inject(fake.Fault{Point: fake.AtPostRecv, Chance: 0.03, Err: errStorm}),
		w.net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.02, Status: transport.StatusUnreachable}),
		w.net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.2, MinDelay: 100 * time.Microsecond, MaxDelay: 2 * time.Millisecond}),
	}
	var all []*actor
	for i := range fabrics {
		for k := range actors {
			all = append(all, w.actor(t, i, (i+1+k%2)%fabrics, rand.New(rand.NewPCG(seed, uint64(10*i+k)))))
		}
	}
	problems := make(chan error, len(all))
	var busy sync.WaitGroup
	for _, a := range all {
		busy.Add(1)
		go func() {
			defer busy.Done()
			for range turns {
				if err := a.turn(mode); err != nil {
					problems <- err
					return
				}
			}
		}()
	}
	busy.Wait()
	close(problems)
	require.NoError(t, <-problems)
	for _, f := range faults {
		f.Remove()
	}
	ended := 0
	for _, a := range all {
		ended += a.numEnded
	}
	require.Greater(t, ended, fabrics*actors*turns/4)
	for i, f := range w.fabs {
		require.Zero(t, f.table.Stats().InUse, "fabric %d", i)
		require.Zero(t, f.table.Stats().Duplicates)
		require.Zero(t, f.Stats().Strays)
	}
	w.close(t)
	goroutines(t, before)
}

// TestAllocatesNothing: an operation costs no memory, from post to drop.
func TestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.SliceBytes = 64 })
	defer w.close(t)
	w.connect(t)
	f := w.fabs[0]
	_, id, _ := memory(t, f, 256)
	_, _, at := memory(t, w.fabs[1], 256)
	for _, kind := range []Kind{Write, WriteImm, Read} {
		r := Request{Kind: kind, Peer: 1, Region: id, Bytes: 256, Remote: at}
		got := Request{Kind: ReceiveImm, Peer: 0}
		one := func() {
			ref, err := f.Post(&r)
			if err != nil {
				panic(err)
			}
			spin(f, ref)
			if kind == WriteImm {
				ref, err := w.fabs[1].Post(&got)
				if err != nil {
					panic(err)
				}
				spin(w.fabs[1], ref)
			}
		}
		one()
		require.Zero(t, testing.AllocsPerRun(200, one), "kind %d", kind)
	}
}

// spin waits without a timer.
func spin(f *Fabric, ref op.Ref) {
	for {
		res, err := f.Look(ref)
		if err != nil || res.Err != nil {
			panic(fmt.Sprint(err, res.Err))
		}
		if res.Released {
			break
		}
		runtime.Gosched()
	}
	if err := f.Drop(ref); err != nil {
		panic(err)
	}
}
