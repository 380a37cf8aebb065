package fifo_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/device/cuda/fifo/fifotest"
	"github.com/moewire/moewire/core/internal/testenv"
)

func newQueue(t testing.TB, length int) (*fifo.Queue, *fifotest.Device) {
	words := make([]uint64, fifo.Words(length))
	q, err := fifo.New(words, length)
	require.NoError(t, err)
	return q, &fifotest.Device{Words: words, Num: uint64(length)}
}

// of is the i-th descriptor of a thread: each word follows from the others.
func of(thread, i uint64) fifo.Descriptor {
	return fifo.Descriptor{What: thread, Bytes: i, Number: thread*1_000_003 ^ i}
}

// book sees to it that every thread's descriptors come once each, whole, in
// order.
type book []uint64

func (b book) enter(t testing.TB, d fifo.Descriptor) {
	if d.What >= uint64(len(b)) || d != of(d.What, b[d.What]) {
		t.Fatalf("%+v came", d)
	}
	b[d.What]++
}

// thread pushes one descriptor after the other.
type thread struct {
	id, pushed, most uint64
	push             *fifotest.Push
}

// step makes one access; false: all is pushed.
func (h *thread) step(d *fifotest.Device) bool {
	if h.pushed == h.most {
		return false
	}
	if h.push == nil {
		p := d.Begin(of(h.id, h.pushed))
		h.push = &p
	}
	switch h.push.Step() {
	case fifotest.Busy:
		return true
	case fifotest.Pushed:
		h.pushed++
	}
	h.push = nil
	return true
}

// TestEveryOrder: whatever order the accesses of threads and host come in,
// nothing is lost, nothing comes twice, nothing is torn, and no more is under
// way than there is room for. Queues are short, so that they are full and go
// round all the time.
func TestEveryOrder(t *testing.T) {
	seed := testenv.Seed(t)
	for n := range testenv.NumSeeds(t, 100) {
		everyOrder(t, rand.New(rand.NewPCG(seed, n)))
	}
}

func everyOrder(t *testing.T, rng *rand.Rand) {
	length := 1 << rng.IntN(4)
	q, d := newQueue(t, length)
	for range rng.IntN(3) {
		d.Next.Store(q.Restart())
	}
	threads := make([]thread, 1+rng.IntN(5))
	for i := range threads {
		threads[i] = thread{id: uint64(i), most: 1 + rng.Uint64N(20)}
	}
	got, out, left := make(book, len(threads)), make([]fifo.Descriptor, 1+rng.IntN(3)), uint64(0)
	for _, h := range threads {
		left += h.most
	}
	base := d.Next.Load()
	for turn, taken := 0, uint64(0); taken < left; turn++ {
		if turn == 1_000_000 {
			t.Fatal("something never comes")
		}
		if at := rng.IntN(len(threads) + 1); at < len(threads) {
			threads[at].step(d)
		} else {
			for _, one := range out[:q.Take(out)] {
				got.enter(t, one)
				taken++
			}
		}
		if under := d.Next.Load() - base - taken; under > uint64(length) {
			t.Fatalf("%d are under way, there is room for %d", under, length)
		}
	}
	require.Zero(t, q.Take(out))
	for i := range threads {
		require.Equal(t, threads[i].most, got[i])
	}
}

// TestThreads is the same with goroutines, so that the race detector can see
// whether what is written is handed over.
func TestThreads(t *testing.T) {
	q, d := newQueue(t, 4)
	const num, each = 4, 200
	end := time.Now().Add(time.Minute)
	var all sync.WaitGroup
	for id := range uint64(num) {
		all.Go(func() {
			for i := uint64(0); i < each && time.Now().Before(end); {
				if d.Try(of(id, i)) == fifotest.Pushed {
					i++
				} else {
					runtime.Gosched()
				}
			}
		})
	}
	got, out := make(book, num), make([]fifo.Descriptor, 3)
	for taken := 0; taken < num*each; {
		n := q.Take(out)
		for _, one := range out[:n] {
			got.enter(t, one)
		}
		if taken += n; n == 0 {
			if time.Now().After(end) {
				t.Fatal("something never comes")
			}
			runtime.Gosched()
		}
	}
	all.Wait()
}

// TestEnd: a thread that waits for room learns why there is none, and the first reason
// stays; what was pushed before is still there.
func TestEnd(t *testing.T) {
	q, d := newQueue(t, 2)
	require.Equal(t, fifotest.Pushed, d.Try(of(0, 0)))
	require.Equal(t, fifotest.Pushed, d.Try(of(0, 1)))
	require.Equal(t, fifotest.Full, d.Try(of(0, 2)))
	require.Zero(t, q.EndReason())
	q.End(7)
	q.End(8)
	require.EqualValues(t, 7, q.EndReason())
	require.Equal(t, fifotest.Ended, d.Try(of(0, 2)))
	out := make([]fifo.Descriptor, 3)
	require.Equal(t, 2, q.Take(out))
	require.Equal(t, of(0, 1), out[1])
	d.Next.Store(q.Restart())
	require.Zero(t, q.EndReason())
	require.Equal(t, fifotest.Pushed, d.Try(of(0, 2)))
}

// TestGenerations: nothing of an earlier generation is taken: not what was
// there, nor what a thread had begun, nor what one pushes that has not heard.
func TestGenerations(t *testing.T) {
	for begun := range 8 { // accesses that the old thread has made before
		q, d := newQueue(t, 2)
		out := make([]fifo.Descriptor, 4)
		require.Equal(t, fifotest.Pushed, d.Try(of(9, 0)))
		old := d.Begin(of(9, 1))
		for range begun {
			require.Equal(t, fifotest.Busy, old.Step())
		}
		d.Next.Store(q.Restart())
		require.Zero(t, q.Take(out), "what had not been taken")
		state := fifotest.Busy
		for state == fifotest.Busy {
			state = old.Step()
		}
		if begun >= 2 && begun < 4 { // it has a number of before, and has not drawn it
			require.NotEqual(t, fifotest.Pushed, state)
		}
		if begun < 2 { // it began anew
			require.Equal(t, 1, q.Take(out))
			continue
		}
		require.Zero(t, q.Take(out), "after %d accesses", begun)
		for i := range uint64(5) {
			require.Equal(t, fifotest.Pushed, d.Try(of(1, i)))
			require.Equal(t, 1, q.Take(out))
			require.Equal(t, of(1, i), out[0])
		}
	}
}

// TestNextOfAnotherGeneration: a device that has a number of an earlier generation is
// told that the queue has ended, and does not wait.
func TestNextOfAnotherGeneration(t *testing.T) {
	q, d := newQueue(t, 4)
	for range 3 {
		q.Restart()
		require.Equal(t, fifotest.Ended, d.Try(of(0, 0)))
	}
	d.Next.Store(q.Restart())
	require.Equal(t, fifotest.Pushed, d.Try(of(0, 0)))
}

func TestNewRefuses(t *testing.T) {
	for _, length := range []int{-1, 0, 3, 6, fifo.MaxLength * 2} {
		_, err := fifo.New(make([]uint64, 1<<20), length)
		require.ErrorContains(t, err, "length is")
	}
	_, err := fifo.New(make([]uint64, fifo.Words(8)-1), 8)
	require.ErrorContains(t, err, "words has 39, 40 are needed for length 8")
}

func TestTakeAllocatesNothing(t *testing.T) {
	q, d := newQueue(t, 4)
	out := make([]fifo.Descriptor, 4)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		d.Try(of(0, 0))
		q.Take(out)
	}))
}
