// Package multirank runs whole systems of real processes over shared memory.
package multirank

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Shape of the soak: small rows, so that the protocol is what is exercised.
const (
	soakTokens = 16
	soakHidden = 64
	soakTopK   = 4
)

// soakPairs is how many dispatches each rank makes.
func soakPairs() int {
	if short() {
		return 1000
	}
	return 10_000
}

// TestSoak: random T per rank, random orders of dispatch and combine,
// abandoned dispatches and random delays; no wrong row, and no growth.
func TestSoak(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("R%d", ranks), func(t *testing.T) {
			seed := time.Now().UnixNano()
			t.Logf("seed %d", seed)
			g := startGroup(t, "soak", ranks, "PAIRS="+strconv.Itoa(soakPairs()), fmt.Sprintf("SEED=%d", seed))
			g.wait(3 * time.Minute)
		})
	}
}

func init() { roles["soak"] = soak }

// value is what token tok of a rank holds in operation n: every rank can tell
// what it must receive without being told.
func value(rank, n, tok int) uint16 {
	return 0x3f80 + uint16((rank*7+n*13+tok*3)%100) // bf16 from 1 up, exact
}

// soak plays a script that all ranks derive from one seed.
func soak(e *env) error {
	script := rand.New(rand.NewPCG(uint64(e.int("SEED")), 1))
	own := rand.New(rand.NewPCG(uint64(e.int("SEED")), uint64(2+e.rank)))
	pairs := e.int("PAIRS")
	before := usage{}
	for i := 0; i < pairs; {
		if i >= pairs/5 && before.threads == 0 {
			before = measure()
		}
		if own.IntN(50) == 0 {
			time.Sleep(time.Duration(own.IntN(1000)) * time.Microsecond)
		}
		n, err := e.playRandom(script, i)
		if err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
		i += n
	}
	return before.check(measure())
}

// playRandom plays one pattern and returns how many dispatches it took.
func (e *env) playRandom(script *rand.Rand, i int) (int, error) {
	pattern, tokens := script.IntN(4), make([]int, e.ranks)
	for r := range tokens {
		tokens[r] = script.IntN(soakTokens + 1)
	}
	seed := script.Uint64()
	first, err := e.send(i, tokens, seed)
	if err != nil {
		return 0, err
	}
	switch pattern {
	case 0: // abandoned, released by a later dispatch
		return 1, e.buf.Release(first.op)
	case 1: // d d c c
		second, err := e.send(i+1, tokens, seed+1)
		if err != nil {
			return 0, err
		}
		if err := first.finish(e); err != nil {
			return 0, err
		}
		return 2, second.finish(e)
	case 2: // d c c
		if err := first.finish(e); err != nil {
			return 0, err
		}
	}
	return 1, first.finish(e)
}

// usage is what must not grow.
type usage struct {
	threads, fds int
	rssBytes     int64
}

func measure() usage {
	fds, _ := os.ReadDir("/proc/self/fd")
	tasks, _ := os.ReadDir("/proc/self/task")
	u := usage{threads: len(tasks), fds: len(fds)}
	statm, _ := os.ReadFile("/proc/self/statm")
	if f := strings.Fields(string(statm)); len(f) > 1 {
		pages, _ := strconv.ParseInt(f[1], 10, 64)
		u.rssBytes = pages * int64(os.Getpagesize())
	}
	return u
}

func (u usage) check(after usage) error {
	const slack = 24 << 20 // the collector's own ups and downs
	if after.fds > u.fds || after.threads > u.threads+2 || after.rssBytes > u.rssBytes+slack {
		return fmt.Errorf("growth: %+v, then %+v", u, after)
	}
	return nil
}

// TestNothingLeft: after kill -9 of every rank nothing of theirs is left in the
// places where shared memory usually stays behind. Other packages' tests run
// beside this one, so it looks only where these ranks write. (Their sockets are
// closed since they met; the shm package kills ranks that still listen.)
func TestNothingLeft(t *testing.T) {
	tmp := t.TempDir()
	g := startGroup(t, "sleeper", 3, "TMPDIR="+tmp)
	g.await("connected", 20*time.Second)
	g.killAll()
	for _, pattern := range []string{"/dev/shm/*moewire*", tmp + "/*"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.Empty(t, found)
	}
}

func init() {
	roles["sleeper"] = func(e *env) error {
		e.say("connected")
		time.Sleep(time.Minute)
		return nil
	}
}

// TestKilled: survivors of a kill -9 get a result without that rank, and a mask
// that says so, without any deadline, and quickly.
func TestKilled(t *testing.T) {
	g := startGroup(t, "survivor", 3)
	g.await("first done", 20*time.Second)
	g.kill(2)
	start := time.Now()
	g.waitFor(10*time.Second, 0, 1)
	t.Logf("survivors returned %v after the kill", time.Since(start).Round(time.Millisecond))
}

func init() { roles["survivor"] = survivor }

func survivor(e *env) error {
	tokens := []int{4, 4, 4}
	p, err := e.send(0, tokens, 1)
	if err != nil {
		return err
	}
	if err := p.finish(e); err != nil {
		return err
	}
	e.say("first done")
	if e.rank == 2 {
		time.Sleep(time.Minute)
	}
	p, err = e.send(1, tokens, 2)
	if err != nil || p.active[2] != 0 {
		return fmt.Errorf("want a result without rank 2, got %v and the mask %v", err, p.active)
	}
	return nil
}

// putRow fills a row with a value, and the token's index at its end.
func putRow(row []byte, v uint16, tok int) {
	for i := 0; i < len(row); i += 2 {
		binary.LittleEndian.PutUint16(row[i:], v)
	}
	binary.LittleEndian.PutUint16(row[len(row)-2:], uint16(tok))
}
