package cpu_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSchedules plays random schedules with random faults, one access at a
// time, and compares everything with the oracle. MOEWIRE_SCHEDULES=N plays N of
// them; MOEWIRE_SCHEDULE_SEED=S plays the one of a failure again.
func TestSchedules(t *testing.T) { playSchedules(t, newScene, numSchedules(t)) }

// playSchedules plays scenes of consecutive seeds.
func playSchedules(t *testing.T, scene func(seed uint64, stats *playStats) *scene, n int) {
	if text := os.Getenv("MOEWIRE_SCHEDULE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		if err := playSeed(scene(seed, new(playStats)), seed); err != nil {
			t.Fatal(err)
		}
		return
	}
	first := uint64(time.Now().UnixNano()) / 1000
	t.Logf("%d schedules from seed %d", n, first)
	var wg sync.WaitGroup
	var failed atomic.Bool
	stats, errs := make([]playStats, 2), make([]error, 2)
	for i := range stats {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for k := i; k < n && !failed.Load(); k += len(stats) {
				if errs[i] = playSeed(scene(first+uint64(k), &stats[i]), first+uint64(k)); errs[i] != nil {
					failed.Store(true)
				}
			}
		}()
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	stats[0].add(&stats[1])
	t.Log(&stats[0])
}

func numSchedules(t *testing.T) int {
	if text := os.Getenv("MOEWIRE_SCHEDULES"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		return n
	}
	if testing.Short() || raceEnabled {
		return 500
	}
	return 5000
}

func playSeed(sc *scene, seed uint64) error {
	if err := sc.play(); err != nil {
		return fmt.Errorf("seed %d, %v: %w\nthe last steps:%s", seed, sc, err, sc.st.history())
	}
	return nil
}

func (t *playStats) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%+v\n", *t)
	for p := range numPoints {
		fmt.Fprintf(&out, "%16s", p)
		for k := range numFaultKinds {
			fmt.Fprintf(&out, "  %s %d", k, t.struck[k][p])
		}
		out.WriteString("\n")
	}
	return out.String()
}

func (t *playStats) add(o *playStats) {
	t.schedules += o.schedules
	t.steps += o.steps
	t.single += o.single
	t.singleLost += o.singleLost
	t.dispatches += o.dispatches
	t.combines += o.combines
	t.flat += o.flat
	t.cancelled += o.cancelled
	t.fenced += o.fenced
	t.numRendezvous += o.numRendezvous
	t.returned += o.returned
	t.fresh += o.fresh
	t.absent += o.absent
	t.skipped += o.skipped
	t.notCombined += o.notCombined
	t.slabs += o.slabs
	t.incarnations += o.incarnations
	t.maxSlabs = max(t.maxSlabs, o.maxSlabs)
	for k := range t.struck {
		for p := range t.struck[k] {
			t.struck[k][p] += o.struck[k][p]
		}
	}
}
