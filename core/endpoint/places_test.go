package endpoint

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport/fake"
)

// checkPlaces (ES5): each entry is in exactly one place, which is that of its
// state; each peer has at most one that is not retired; the counts are right.
func (s *Store) checkPlaces() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var listed []int32
	for i, steps := s.live.head, 0; i != none && steps <= len(s.entries); i, steps = s.live.next[i], steps+1 {
		listed = append(listed, i)
	}
	var counted Stats
	for i, e := range s.entries {
		at, st := int32(i), e.state()
		in := [3]int{count(s.vacant, at), count(listed, at), count(s.retired, at)}
		var want [3]int
		switch {
		case st == live:
			want[1], counted.Live = 1, counted.Live+1
		case st >= retiring:
			want[2] = 1
		case st == vacant && !e.busy:
			want[0] = 1
		case st >= creating && st < live:
			counted.Connecting++
		}
		if st == retiring {
			counted.Retiring++
		}
		if in != want {
			return fmt.Errorf("entry %d in state %d is listed %v times as vacant, live, retired", i, st, in)
		}
		if of := st >= creating && st <= live; of != (e.pair != nil) || of && (e.pair.index != at || s.pairs[e.peer] != e.pair) {
			return fmt.Errorf("entry %d in state %d is not its peer's", i, st)
		}
	}
	for p, pair := range s.pairs {
		if pair.index != none && s.entries[pair.index].pair != pair || (pair.index == none) != (pair.older != nil) {
			return fmt.Errorf("peer %d has entry %d, which is another's, or is idle with one", p, pair.index)
		}
	}
	if counted.Live != s.stats.Live || counted.Connecting != s.stats.Connecting || counted.Retiring != s.stats.Retiring {
		return fmt.Errorf("counted %+v, said to be %+v", counted, s.stats)
	}
	return nil
}

func count(list []int32, i int32) (n int) {
	for _, other := range list {
		if other == i {
			n++
		}
	}
	return n
}

// watchPlaces looks at all stores from time to time.
func (w *world) watchPlaces(stop chan struct{}) (found chan error) {
	found = make(chan error, 1)
	go func() {
		defer close(found)
		for {
			for _, nd := range w.nodes {
				if err := nd.now().checkPlaces(); err != nil {
					found <- fmt.Errorf("node %d: %w", nd.self, err)
					return
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	}()
	return found
}

// TestES5CheckFinds: the check sees an entry that is in two places, or in none.
func TestES5CheckFinds(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	w.nodes[0].connect(t, 1)
	s := w.nodes[0].now()
	require.NoError(t, s.checkPlaces())
	s.mu.Lock()
	vacant := slices.Clone(s.vacant)
	s.vacant = append(s.vacant, s.pairs[1].index)
	s.mu.Unlock()
	require.ErrorContains(t, s.checkPlaces(), "[1 1 0] times")
	s.mu.Lock()
	s.vacant = vacant[:len(vacant)-1]
	s.mu.Unlock()
	require.ErrorContains(t, s.checkPlaces(), "[0 0 0] times")
	s.mu.Lock()
	s.vacant = vacant
	s.stats.Live++
	s.mu.Unlock()
	require.ErrorContains(t, s.checkPlaces(), "said to be")
	s.mu.Lock()
	s.stats.Live--
	s.mu.Unlock()
}
