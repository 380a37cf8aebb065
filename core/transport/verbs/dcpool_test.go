package verbs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// dcWorld uses a pool as a carrier would, and counts for itself.
type dcWorld struct {
	pool  *dcPool
	rng   *rand.Rand
	peers []*dcPeer
	want  []int   // requests that a peer still has to post
	on    [][]int // of each initiator: the peers of what is posted, the oldest first
	ended []int   // requests of a peer that ended, well or not

	resets   []bool // initiators that are to be reset
	broken   []bool // and could not be
	flushing []bool // initiators that have failed
	fails    func() bool
	cannot   func() bool // be reset
	others   []int       // what a peer has posted since others began to wait
	problem  error
}

func newDCWorld(seed uint64, numDCIs, quota, numPeers, each int) *dcWorld {
	w := &dcWorld{
		pool: newDCPool(numDCIs, quota), rng: rand.New(rand.NewPCG(seed, 5)), on: make([][]int, numDCIs),
		resets: make([]bool, numDCIs), broken: make([]bool, numDCIs), flushing: make([]bool, numDCIs),
		want: make([]int, numPeers), ended: make([]int, numPeers), others: make([]int, numPeers),
		fails: func() bool { return false }, cannot: func() bool { return false },
	}
	for i := range w.want {
		w.peers = append(w.peers, newDCPeer())
		w.want[i] = each
	}
	return w
}

func (w *dcWorld) wrong(format string, args ...any) {
	if w.problem == nil {
		w.problem = fmt.Errorf(format, args...)
	}
}

// post lets a peer post one request, if it may.
func (w *dcWorld) post(i int) {
	if w.want[i] == 0 {
		return
	}
	on, ok, err := w.pool.post(w.peers[i])
	if err != nil {
		w.ended[i] += w.want[i] // the caller ends them
		w.want[i] = 0
		return
	}
	if !ok {
		return
	}
	w.want[i]--
	switch {
	case len(w.on[on]) > 0 && w.on[on][0] != i:
		w.wrong("initiator %d serves peers %d and %d", on, w.on[on][0], i)
	case w.resets[on] || w.broken[on] || w.flushing[on]:
		w.wrong("peer %d posts on initiator %d, which has failed", i, on)
	}
	if len(w.pool.waiting) > 0 {
		if w.others[i]++; w.others[i] > w.pool.quota {
			w.wrong("peer %d has posted %d requests while others waited, quota %d", i, w.others[i], w.pool.quota)
		}
	}
	w.on[on] = append(w.on[on], i)
}

// finish ends the oldest request of an initiator.
func (w *dcWorld) finish(on int) {
	if len(w.on[on]) == 0 {
		return
	}
	i := w.on[on][0]
	w.on[on] = w.on[on][1:]
	ok := !w.flushing[on] && !w.fails()
	w.flushing[on] = w.flushing[on] || !ok
	w.ended[i]++
	granted, reset := w.pool.completed(on, ok)
	if reset {
		if len(w.on[on]) > 0 {
			w.wrong("initiator %d is to be reset with %d requests outstanding", on, len(w.on[on]))
		}
		w.resets[on] = true
	}
	if len(w.on[on]) == 0 {
		w.others[i] = 0
	}
	w.granted(granted)
}

func (w *dcWorld) granted(peer *dcPeer) {
	for i, p := range w.peers {
		if p == peer {
			w.others[i] = 0
			w.post(i) // a peer that was granted one posts what waits
		}
	}
}

func (w *dcWorld) reset(on int) {
	if !w.resets[on] {
		return
	}
	w.resets[on] = false
	var err error
	if w.cannot() {
		err = errors.New("it cannot be reset")
		w.broken[on] = true
	} else {
		w.flushing[on] = false
	}
	granted, abandoned := w.pool.reset(on, err)
	w.granted(granted)
	for _, p := range abandoned {
		for i := range w.peers {
			if w.peers[i] == p {
				w.ended[i] += w.want[i]
				w.want[i] = 0
			}
		}
	}
}

// run does things in any order until everything has ended.
func (w *dcWorld) run(each int) error {
	for idle := 0; idle < 100_000 && w.problem == nil; idle++ {
		left := 0
		for i := range w.peers {
			left += each - w.ended[i]
		}
		if left == 0 {
			return nil
		}
		switch w.rng.IntN(5) {
		case 0, 1:
			w.post(w.rng.IntN(len(w.peers)))
		case 2, 3:
			w.finish(w.rng.IntN(len(w.on)))
		case 4:
			w.reset(w.rng.IntN(len(w.on)))
		}
	}
	if w.problem == nil {
		w.wrong("somebody waits for ever: %v left, %v ended", w.want, w.ended)
	}
	return w.problem
}

// storm is many peers on few initiators, with failures.
func storm(seed uint64) error {
	const each = 20
	w := newDCWorld(seed, 3, 4, 12, each)
	w.fails = func() bool { return w.rng.IntN(40) == 0 }
	w.cannot = func() bool { return w.rng.IntN(4) == 0 }
	return w.run(each)
}

// TestDCPool: one peer at a time per initiator, the quota holds, no peer waits for ever,
// resets come after the last completion.
func TestDCPool(t *testing.T) {
	seed := testenv.Seed(t)
	for i := range uint64(300) {
		require.NoError(t, storm(seed+i), "round %d", i)
	}
}

// TestDCQuota: a peer that always has more to post does not keep an initiator
// for itself, and alone it is not held up.
func TestDCQuota(t *testing.T) {
	p := newDCPool(1, 3)
	hog, other := newDCPeer(), newDCPeer()
	for range 10 {
		_, ok, err := p.post(hog)
		require.True(t, ok && err == nil, "nobody waits")
	}
	_, ok, err := p.post(other)
	require.False(t, ok || err != nil)
	for i := range 5 {
		_, ok, _ = p.post(hog)
		require.Equal(t, i < 3, ok)
	}
	for range 12 {
		granted, reset := p.completed(0, true)
		require.True(t, granted == nil && !reset, "it is drained first")
	}
	granted, _ := p.completed(0, true)
	require.Same(t, other, granted)
	on, ok, err := p.post(other)
	require.NoError(t, err)
	require.True(t, ok && on == 0)
	_, ok, _ = p.post(hog)
	require.False(t, ok, "it waits behind")
	granted, _ = p.completed(0, true)
	require.Same(t, hog, granted)
}

// TestDCFailure: a request that fails ends its own peer; the initiator comes back once it
// is drained, for a peer that waits; and when none works any more, the peers that wait
// are told.
func TestDCFailure(t *testing.T) {
	p := newDCPool(1, 3)
	bad, good := newDCPeer(), newDCPeer()
	for range 2 {
		_, ok, err := p.post(bad)
		require.True(t, ok && err == nil)
	}
	_, ok, _ := p.post(good)
	require.False(t, ok)
	granted, reset := p.completed(0, false)
	require.True(t, granted == nil && !reset, "one is outstanding")
	_, _, err := p.post(bad)
	require.ErrorIs(t, err, errDCPeer)
	_, reset = p.completed(0, false)
	require.True(t, reset)
	granted, abandoned := p.reset(0, nil)
	require.Same(t, good, granted)
	require.Empty(t, abandoned)
	_, ok, err = p.post(good)
	require.True(t, ok && err == nil)

	waits := newDCPeer()
	_, ok, _ = p.post(waits)
	require.False(t, ok)
	_, reset = p.completed(0, false)
	require.True(t, reset)
	_, abandoned = p.reset(0, errors.New("no"))
	require.Equal(t, []*dcPeer{waits}, abandoned)
	_, _, err = p.post(newDCPeer())
	require.ErrorIs(t, err, errNoDCI)
}

// TestDCLeave: a peer that was granted an initiator and goes gives it to the next.
func TestDCLeave(t *testing.T) {
	p := newDCPool(1, 3)
	first, second, third := newDCPeer(), newDCPeer(), newDCPeer()
	for i, peer := range []*dcPeer{first, second, third} {
		_, ok, _ := p.post(peer)
		require.Equal(t, i == 0, ok)
	}
	granted, _ := p.completed(0, true)
	require.Same(t, second, granted)
	require.Same(t, third, p.leave(second))
	require.Nil(t, p.leave(third))
	_, ok, err := p.post(newDCPeer())
	require.True(t, ok && err == nil)
}
