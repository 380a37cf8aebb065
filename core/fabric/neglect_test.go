package fabric

import (
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

// between is how long the callers in these tests that begin again rest: less than it
// takes the background to begin.
const between = standbyEvery / 5

// try begins an operation as often as it takes.
func try(t *testing.T, f *Fabric, r Request) op.Ref {
	t.Helper()
	ref, err := f.Post(&r)
	for end := inTime(); err != nil && time.Now().Before(end); ref, err = f.Post(&r) {
		time.Sleep(between)
	}
	require.NoError(t, err)
	return ref
}

// settled waits, and polls nothing, until an operation has ended well.
func settled(t *testing.T, f *Fabric, r op.Ref) {
	t.Helper()
	res, err := f.table.Wait(r, inTime())
	require.NoError(t, err)
	require.Equal(t, op.Done, res.State)
}

// TestRetriesAtBounds: a caller that does nothing but begin operations gets places, of
// slices and of transfers, with the background and without.
func TestRetriesAtBounds(t *testing.T) {
	for _, background := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.SendDepth, c.NumTransfers = 4, 8 })
			defer w.close(t)
			w.connect(t)
			f := w.fabs[0]
			_, id, _ := memory(t, f, 8)
			_, _, at := memory(t, w.fabs[1], 8)
			if !background {
				withoutBackground(t, f)
			}
			var refs []op.Ref
			for range f.cfg.SendDepth + 1 {
				refs = append(refs, try(t, f, Request{Kind: Write, Peer: 1, Region: id, Bytes: 8, Remote: at}))
			}
			for _, r := range refs {
				require.NoError(t, f.Drop(r))
			}
			for range f.cfg.NumTransfers + 1 { // those dropped have their slots until they are polled
				require.NoError(t, f.Drop(try(t, f, Request{Kind: Write, Peer: 1, Region: id, Bytes: 8, Remote: at})))
			}
			for f.outstanding.Load() > 0 { // Close has others poll
				f.poller.catchUp(f)
				time.Sleep(between)
			}
		})
	}
}

// TestReceiversAtBound: a receiver has its place back when its immediate is there.
func TestReceiversAtBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := pair(t)
		defer w.close(t)
		f := w.fabs[0]
		_, _, at := memory(t, f, 8)
		waits := Request{Kind: ReceiveImm, Peer: 1}
		ref, err := f.Post(&waits)
		var refs []op.Ref
		for ; err == nil; ref, err = f.Post(&waits) {
			refs = append(refs, ref)
		}
		require.ErrorIs(t, err, errWaiting)
		done(t, w.fabs[1], post(t, w.fabs[1], Request{Kind: WriteImm, Peer: 0, Remote: at}))
		for _, r := range append(refs, post(t, f, waits)) {
			require.NoError(t, f.Drop(r))
		}
	})
}

// TestPostsDoNotHoldUp: while a caller posts again and again and asks for nothing, what
// has ended is taken in.
func TestPostsDoNotHoldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.SliceBytes = 8 })
		defer w.close(t)
		w.connect(t)
		f := w.fabs[0]
		_, id, _ := memory(t, f, 16)
		_, _, at := memory(t, w.fabs[1], 16)
		cut := post(t, f, Request{Kind: WriteImm, Peer: 1, Region: id, Bytes: 16, Remote: at})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			settled(t, f, cut)
		}()
		for range 20 {
			require.NoError(t, f.Drop(post(t, f, Request{Kind: Write, Peer: 1, Region: id, Bytes: 8, Remote: at})))
			time.Sleep(between)
		}
		select {
		case <-ended:
		default:
			t.Error("nobody has polled")
		}
		<-ended
		require.NoError(t, f.Drop(cut))
	})
}

// TestWaitInThePast: a wait whose deadline has passed polls, too.
func TestWaitInThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, write := pair(t)
		defer w.close(t)
		f := w.fabs[0]
		ref := post(t, f, write)
		_, err := f.Wait(ref, time.Now())
		for end := inTime(); err != nil && time.Now().Before(end); _, err = f.Wait(ref, time.Now()) {
			require.ErrorIs(t, err, op.ErrTimedOut)
			time.Sleep(between)
		}
		require.NoError(t, err)
		require.NoError(t, f.Drop(ref))
	})
}

// TestNoTurnAfterAbandon: a caller that waits for the memory of an operation of a broken
// fabric sleeps until its deadline.
func TestNoTurnAfterAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, write := pair(t)
		defer w.close(t)
		f := w.fabs[0]
		delayed := w.net.Inject(fake.Fault{Point: fake.AtWire, MinDelay: time.Second, MaxDelay: time.Second})
		defer delayed.Remove()
		ref := post(t, f, write)
		f.Abandon(transport.ErrNoResource)
		require.Nil(t, f.poller.turn(f))
		begin := time.Now()
		_, err := f.WaitReleased(ref, begin.Add(time.Millisecond))
		require.ErrorIs(t, err, op.ErrTimedOut)
		require.Equal(t, time.Millisecond, time.Since(begin))
	})
}

// TestEndedAfterArrival: when a connection ends, receivers get what has arrived on it,
// and only those for which there is nothing are told.
func TestEndedAfterArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := pair(t)
		defer w.close(t)
		f := w.fabs[0]
		_, _, at := memory(t, f, 8)
		first := post(t, f, Request{Kind: ReceiveImm, Peer: 1})
		second := post(t, f, Request{Kind: ReceiveImm, Peer: 1})
		done(t, w.fabs[1], post(t, w.fabs[1], Request{Kind: WriteImm, Peer: 0, Remote: at, Imm: 7}))
		f.Disconnect(1)
		gone(t, f)
		require.EqualValues(t, 7, done(t, f, first).Imm)
		failed(t, f, second, ErrEnded)
	})
}

// TestEndedWhileAnotherPolls: the goroutine that has the right to poll, and has not
// looked yet, delivers what has arrived before the receivers for which there is nothing
// are told.
func TestEndedWhileAnotherPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := pair(t)
		defer w.close(t)
		f := w.fabs[0]
		_, _, at := memory(t, f, 8)
		first := post(t, f, Request{Kind: ReceiveImm, Peer: 1})
		second := post(t, f, Request{Kind: ReceiveImm, Peer: 1})
		require.True(t, f.poller.take())
		done(t, w.fabs[1], post(t, w.fabs[1], Request{Kind: WriteImm, Peer: 0, Remote: at, Imm: 7}))
		f.Disconnect(1)
		gone(t, f)
		synctest.Wait()
		var held [2]op.State
		for i, r := range []op.Ref{first, second} {
			res, _ := f.table.Look(r)
			held[i] = res.State
		}
		f.poller.give(f)
		require.Equal(t, [2]op.State{op.Pending, op.Pending}, held)
		require.EqualValues(t, 7, done(t, f, first).Imm)
		failed(t, f, second, ErrEnded)
		require.Zero(t, f.poller.due.Load())
	})
}

// TestCatchUp: one look takes in all that is there.
func TestCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.SendDepth = 256 })
		defer w.close(t)
		w.connect(t)
		f := w.fabs[0]
		_, _, at := memory(t, w.fabs[1], 8)
		withoutBackground(t, f)
		var refs []op.Ref
		for range 3 * len(f.poller.done) {
			refs = append(refs, post(t, f, Request{Kind: Write, Peer: 1, Remote: at}))
		}
		time.Sleep(time.Second)
		f.poller.catchUp(f)
		for _, r := range refs {
			res, err := f.table.Look(r)
			require.NoError(t, err)
			require.Equal(t, op.Done, res.State)
			require.NoError(t, f.Drop(r))
		}
	})
}

// TestEndingsHaveTheirOwnRounds: a peer that ends while much arrives has as many
// polls for what has arrived from it as one that ended before.
func TestEndingsHaveTheirOwnRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, testenv.Seed(t), 3, fake.Config{}, nil)
		defer w.close(t)
		w.connect(t)
		f := w.fabs[0]
		q := &f.poller
		withoutBackground(t, f)
		require.True(t, q.take())
		var refs []op.Ref
		for _, id := range []endpoint.Peer{1, 2} {
			refs = append(refs, post(t, f, Request{Kind: ReceiveImm, Peer: id}))
			p, err := f.peerOf(id)
			require.NoError(t, err)
			p.mu.Lock()
			p.condemnLocked()
			p.mu.Unlock()
		}
		pending := func(i int) bool {
			res, err := f.table.Look(refs[i])
			require.NoError(t, err)
			return res.State == op.Pending
		}
		var rounds [2]int // that each was pending in
		for round := range catchUpRounds + catchUpRounds/2 {
			for i, from := range []int{0, catchUpRounds / 2} {
				if p, _ := f.peerOf(endpoint.Peer(1 + i)); round == from {
					q.endReceivers(f, p)
				}
				if round >= from && pending(i) {
					rounds[i]++
				}
			}
			q.takeEndings()
			q.endWhenAllIsIn(f, len(q.done))
		}
		q.give(f)
		require.Equal(t, [2]int{catchUpRounds, catchUpRounds}, rounds)
		require.Zero(t, q.due.Load())
		for _, r := range refs {
			failed(t, f, r, ErrEnded)
		}
	})
}

// TestServeSeesWhoIsInside: the background gives the right to poll back also to a caller
// with a call that was counted before.
func TestServeSeesWhoIsInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := pair(t) // a caller is inside
		defer w.close(t)
		f := w.fabs[0]
		require.True(t, f.poller.take())
		ended := make(chan error, 1)
		go func() { ended <- f.poller.serve(f, f.poller.watch.Calls()) }()
		synctest.Wait()
		require.Len(t, ended, 1)
		require.NoError(t, <-ended)
	})
}
