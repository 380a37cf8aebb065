package client

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/wire"
)

// event is one call for one key: when it began and ended, on a clock that counts, and what it said.
type event struct {
	begin, end int64
	op         string
	value      int // that was put, or got; 0: none
	ok         bool
}

// after is what a key has once a call has taken effect at one moment, when it had a value before: the model of one key. 0 is no
// block; false: the call cannot have said that.
func (e *event) after(value int) (next int, fits bool) {
	switch e.op {
	case "put":
		if e.ok {
			return e.value, value == 0 || value == e.value
		}
		return value, value != 0 && value != e.value
	case "get":
		return value, value == e.value
	case "exists":
		return value, e.ok == (value != 0)
	case "delete":
		return 0, e.ok == (value != 0)
	}
	panic(e.op)
}

// history is all calls for one key.
type history struct {
	events []event
	evicts bool // the block may be gone at any moment
	failed map[moment]bool
}

// moment is which calls have taken effect, a bit for each, and what the key has then.
type moment struct {
	done  uint64
	value int
}

// isLinearizable looks for an order of the calls in which each takes effect at one moment between its begin and its end.
func (h *history) isLinearizable() bool {
	h.failed = map[moment]bool{}
	return h.goesOn(moment{})
}

func (h *history) goesOn(m moment) bool {
	if bits.OnesCount64(m.done) == len(h.events) {
		return true
	}
	if h.failed[m] {
		return false
	}
	if h.oneMore(m) || h.evicts && m.value != 0 && h.goesOn(moment{m.done, 0}) {
		return true
	}
	h.failed[m] = true
	return false
}

// oneMore tries each call that no other one has ended before.
func (h *history) oneMore(m moment) bool {
	first := int64(1 << 62)
	for i := range h.events {
		if m.done>>i&1 == 0 {
			first = min(first, h.events[i].end)
		}
	}
	for i := range h.events {
		e := &h.events[i]
		if m.done>>i&1 == 1 || e.begin > first {
			continue
		}
		if next, fits := e.after(m.value); fits && h.goesOn(moment{m.done | 1<<i, next}) {
			return true
		}
	}
	return false
}

// TestHistoryIsChecked: what no store may say is found, and what one may is not.
func TestHistoryIsChecked(t *testing.T) {
	put, get, gone := event{0, 1, "put", 1, true}, event{2, 3, "get", 1, true}, event{2, 3, "get", 0, false}
	during := func(e event, begin, end int64) event { e.begin, e.end = begin, end; return e }
	for name, c := range map[string]struct {
		events       []event
		strict, lost bool // whether that may be, without eviction and with
	}{
		"put and got":           {[]event{put, get}, true, true},
		"put and lost":          {[]event{put, gone}, false, true},
		"got before it was put": {[]event{during(get, 0, 1), during(put, 2, 3)}, false, false},
		"got while it is put":   {[]event{during(put, 0, 5), during(get, 2, 3), during(gone, 1, 4)}, true, true},
		"there, and not yet":    {[]event{during(put, 0, 9), during(get, 2, 3), during(gone, 4, 5)}, false, true},
		"two blocks of a key":   {[]event{put, {2, 3, "put", 2, true}}, false, true},
		"a conflict":            {[]event{put, {2, 3, "put", 2, false}}, true, true},
		"a conflict with none":  {[]event{{0, 1, "put", 2, false}}, false, false},
		"back after a delete":   {[]event{put, {2, 3, "delete", 0, true}, during(get, 4, 5)}, false, false},
		"deleted twice":         {[]event{put, {2, 9, "delete", 0, true}, {3, 8, "delete", 0, true}}, false, false},
		"seen, then absent":     {[]event{put, {2, 3, "exists", 0, true}, {4, 5, "exists", 0, false}}, false, true},
	} {
		require.Equal(t, c.strict, (&history{events: c.events}).isLinearizable(), name)
		require.Equal(t, c.lost, (&history{events: c.events, evicts: true}).isLinearizable(), name)
	}
}

// recorder is clients of one server that note what they are told.
type recorder struct {
	*testing.T
	seed    uint64
	clients []*Client
	blocks  [][]byte // by value
	evicts  bool     // other blocks come meanwhile
	clock   atomic.Int64
	mu      sync.Mutex
	events  map[string][]event
}

// call does something with a key, and notes it.
func (r *recorder) call(c *Client, rng *rand.Rand, key string) {
	e := event{begin: r.clock.Add(1)}
	name := []byte(key)
	var err error
	switch rng.IntN(6) {
	case 0, 1:
		e.op, e.value = "put", 1+rng.IntN(len(r.blocks)-1)
		e.ok, err = c.Put(name, r.blocks[e.value], nil)
	case 2, 3:
		var got []byte
		e.op = "get"
		if got, err = c.Get(name); got != nil {
			e.ok, e.value = true, slices.IndexFunc(r.blocks, func(b []byte) bool { return string(b) == string(got) })
			require.Positive(r, e.value, "no whole block: %d bytes", len(got))
		}
	case 4:
		var found []bool
		e.op = "exists"
		found, err = c.Exists([][]byte{name})
		e.ok = found[0]
	case 5:
		var n int
		e.op = "delete"
		n, err = c.Delete([][]byte{name})
		e.ok = n == 1
	}
	e.end = r.clock.Add(1)
	require.NoError(r, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[key] = append(r.events[key], e)
}

const historyKeys, historyWorkers, historyCalls = 3, 6, 8

// round is calls of several threads for a few keys that nothing was done with before.
func (r *recorder) round(n uint64) {
	var all sync.WaitGroup
	for worker := range historyWorkers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(r.seed, n<<8+uint64(worker)))
			for i := range historyCalls {
				if r.evicts && worker == 0 {
					mustPut(r, r.clients[0], fmt.Sprint("other", n, "/", i), r.blocks[len(r.blocks)-1])
				}
				r.call(r.clients[worker%len(r.clients)], rng, fmt.Sprint("key", n, "/", rng.IntN(historyKeys)))
			}
		})
	}
	all.Wait()
}

// BS1: what clients of one server are told of a key, by TCP and in place, has an order in which each call takes effect at one moment
// while it runs: a block is there once its put has ended, or while it runs, whole, and not after its delete. Where blocks are
// evicted they may be gone at any moment, and do not come back.
func TestBS1History(t *testing.T) {
	for name, c := range map[string]struct {
		capacity int64
		onDisk   bool
	}{"memory": {1 << 30, false}, "files": {1 << 30, true}, "evicting": {4 << 20, false}, "evicting files": {4 << 20, true}} {
		t.Run(name, func(t *testing.T) {
			path := ""
			if c.onDisk {
				path = t.TempDir()
			}
			s := engine(t, path, c.capacity)
			first, srv := served(t, s, wire.ProtectDigest)
			r := &recorder{T: t, seed: testenv.Seed(t), evicts: c.capacity < 1<<30, clients: []*Client{first, dial(t, one(srv), by(CarrierTCP))}, events: map[string][]event{}}
			for _, n := range []int{0, 20_000, 70_000, 200_000} {
				r.blocks = append(r.blocks, noise(rand.New(rand.NewPCG(r.seed, 0)), n))
			}
			for n := range testenv.NumSeeds(t, 20) {
				r.round(n)
			}
			ops := map[string]int{}
			for key, events := range r.events {
				h := history{events: events, evicts: r.evicts}
				require.LessOrEqual(t, len(events), 64)
				require.True(t, h.isLinearizable(), "%s: %+v", key, events)
				for _, e := range events {
					ops[fmt.Sprint(e.op, " ", e.ok)]++
				}
			}
			require.Equal(t, r.evicts, s.Stats().EvictedCold > 0)
			require.Len(t, ops, 8, "each of the four, well and not")
		})
	}
}
