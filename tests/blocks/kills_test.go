// Package blocks runs servers of the block store as real processes, on files, for clients that share their memory or have blocks
// sent, and kills them at random points: in calls, at a call of the disk, while they start and while they seal. Their
// disks fail, and bits of their files are flipped
// between two lives. What the next life has is compared with an oracle.
//
// MOEWIRE_STORE_KILLS sets how many are killed, MOEWIRE_SEED what is drawn. With -short there are 6 kills, else 50.
package blocks

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/client"
)

// numKills is how often servers are killed in a form of the test.
func numKills(t *testing.T) int {
	if text := os.Getenv("MOEWIRE_STORE_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "MOEWIRE_STORE_KILLS")
		return n / 2
	}
	if testing.Short() {
		return 3
	}
	return 25
}

// form is one way to run servers.
type form struct {
	capacity  int64
	keys      int
	most      int  // bytes of a block
	evicts    bool // a block may be gone; only wrong ones count
	perFolder int  // lives of a folder
}

// TestServerIsKilled kills servers at random points, with disks that fail: all that was acknowledged and could be lost only with
// the disk is there in the next life, with its bytes, and nothing else.
func TestServerIsKilled(t *testing.T) {
	newKillRun(t, form{capacity: 127 << 20, keys: 60, most: 20_000, perFolder: 12}).run(numKills(t))
}

// TestEvictingServerIsKilled is the same with a store that is too small: no wrong block, and none that was deleted before a flush.
func TestEvictingServerIsKilled(t *testing.T) {
	newKillRun(t, form{capacity: 8 << 20, keys: 150, most: 150_000, evicts: true, perFolder: 50}).run(numKills(t))
}

// killRun is what runs.
type killRun struct {
	form
	t    *testing.T
	rng  *rand.Rand
	path string
	keys []*known
	how  map[string]int  // kills
	done [4]atomic.Int64 // calls that were acknowledged

	bounced uint64 // puts by way of shared memory
}

// Of killRun.done.
const (
	puts = iota
	deletes
	hits
	flushes
)

func newKillRun(t *testing.T, f form) *killRun {
	return &killRun{form: f, t: t, rng: rand.New(rand.NewPCG(newSeed(t), 1)), how: map[string]int{}}
}

// newSeed is MOEWIRE_SEED, or a new one, which it logs.
func newSeed(t *testing.T) uint64 {
	seed := rand.Uint64()
	if text := os.Getenv("MOEWIRE_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "MOEWIRE_SEED")
	}
	t.Logf("MOEWIRE_SEED=%d", seed)
	return seed
}

func (r *killRun) run(kills int) {
	began := time.Now()
	for n := range kills {
		if n%r.perFolder == 0 {
			r.path, r.keys = r.t.TempDir(), nil
			for i := range r.form.keys {
				r.keys = append(r.keys, newKnown(fmt.Sprint("key", i)))
			}
		}
		r.life(kinds[n%len(kinds)])
	}
	p, c := r.next()
	c.Close()
	p.kill()
	r.t.Logf("%d kills in %v: %v; %d puts, %d deletes, %d hits, %d flushes; %d puts by way of shared memory", kills, time.Since(began).Round(time.Millisecond), r.how,
		r.done[puts].Load(), r.done[deletes].Load(), r.done[hits].Load(), r.done[flushes].Load(), r.bounced)
	require.True(r.t, kills < 10 || r.bounced > 0, "none of %d clients had its puts copied", kills)
}

// trouble draws what the disk does in a life.
func (r *killRun) trouble() trouble {
	t := trouble{Seed: r.rng.Uint64()}
	if r.rng.IntN(2) == 0 {
		t.Writes = r.rng.Float64() * 0.1
	}
	if r.evicts {
		t.Syncs = t.Writes
	}
	if r.evicts && r.rng.IntN(2) == 0 {
		t.Reads, t.Silent = r.rng.Float64()*0.05, r.rng.Float64()*0.05
	}
	return t
}

// next begins a life with a disk that is well, and compares what is there.
func (r *killRun) next() (*process, *client.Client) {
	p := begin(r.t, life{Path: r.path, Capacity: r.capacity})
	require.True(r.t, p.await(), "a server does not start: %s", p.stderr.String())
	c := p.dial([]client.Carrier{client.CarrierTCP, client.CarrierSHM}[r.rng.IntN(2)])
	for _, k := range r.keys {
		got, err := c.Get([]byte(k.name))
		require.NoError(r.t, err)
		version := k.versionOf(got, r.most)
		require.True(r.t, r.allows(k, version), "%s is version %d of %d (-1: other bytes); %+v\n%s", k.name, version, k.latest, *k, p.stderr.String())
		k.found(version)
	}
	r.listed(c)
	if !r.evicts {
		require.Greater(r.t, p.stats(c).FreeBytes, int64(16<<20), "nothing must be evicted here")
	}
	return p, c
}

// allows reports whether a version may be found at the beginning of a life.
func (r *killRun) allows(k *known, version int) bool {
	if r.evicts {
		return version == 0 || version > k.dead
	}
	return k.after[version]
}

// listed compares the names of all blocks: no others than those that were ever put.
func (r *killRun) listed(c *client.Client) {
	names := map[string]bool{}
	for _, k := range r.keys {
		names[k.name] = k.latest > 0
	}
	require.NoError(r.t, c.List(nil, 0, func(key []byte) bool {
		require.True(r.t, names[string(key)], "%q was never put", key)
		return true
	}))
	found, err := c.Exists([][]byte{[]byte("never"), []byte("key"), []byte("key1 ")})
	require.NoError(r.t, err)
	require.Equal(r.t, []bool{false, false, false}, found)
}

// kinds are how lives end, in turn.
var kinds = []string{"at a call of the disk", "sealing", "starting", "at a call of the disk", "from outside"}

// life is one that ends by a kill.
func (r *killRun) life(kind string) {
	r.how[kind]++
	if kind == "starting" {
		r.dieStarting()
		return
	}
	p, c := r.next()
	defer p.kill()
	defer c.Close()
	t := r.trouble()
	kill := func() { p.signal(syscall.SIGKILL) }
	switch kind {
	case "sealing":
		kill = func() {
			p.arm(trouble{Seed: t.Seed, Die: 1 + r.rng.IntN(8)})
			p.signal(syscall.SIGTERM)
		}
	case "at a call of the disk":
		t.Die = 1 + r.rng.IntN(300)
	}
	p.arm(t)
	r.work(c, t, kill)
	r.bounced += c.Counters().Bounced.Load()
	p.ends()
}

// dieStarting is for a server that ends while it starts, or soon after.
func (r *killRun) dieStarting() {
	t := r.trouble()
	t.Die = 1 + r.rng.IntN(40)
	p := begin(r.t, life{Path: r.path, Capacity: r.capacity, Trouble: t})
	defer p.kill()
	if r.rng.IntN(3) == 0 {
		time.Sleep(time.Duration(r.rng.IntN(20)) * time.Millisecond)
		p.signal(syscall.SIGKILL)
	}
	p.await()
}

// work has clients call until the server is dead.
func (r *killRun) work(c *client.Client, t trouble, kill func()) {
	var workers sync.WaitGroup
	var stop atomic.Bool
	const numWorkers = 3
	for n := range numWorkers {
		w := &worker{r: r, c: c, lossy: t.Writes > 0, rng: rand.New(rand.NewPCG(r.rng.Uint64(), 2))}
		for i := n; i < len(r.keys); i += numWorkers {
			w.keys = append(w.keys, r.keys[i])
		}
		workers.Go(func() {
			for step := 0; step < 400 && !stop.Load() && w.failed < 8; step++ {
				w.step()
			}
		})
	}
	time.Sleep(time.Duration(r.rng.IntN(60)) * time.Millisecond)
	if t.Die == 0 {
		kill()
	}
	workers.Wait()
	kill()
}

// ends waits until the process has ended: it was killed, or has closed its store before.
func (p *process) ends() {
	for {
		if _, is := p.line(); !is {
			p.kill()
			return
		}
	}
}
