package cuda_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/shm"
)

// A rank that is a process of its own: the test binary again, which runs the
// test named "TestChild" with its rankSpec in the environment.
const rankVariable = "MOEWIRE_TEST_GPU_RANK"

// testTimeout bounds every wait between processes.
const testTimeout = 2 * time.Minute

type rankSpec struct {
	Rank, Ranks int
	Play        string // which of plays
	Path        string // how the others' memory is expected to be reached; by commas: each rank's
	Fabric      string // what each rank's driver has of fabric handles, as EMULATOR_FABRIC says it; by commas
	Seed        uint64
	Dir         string // where ranks leave what others read
	Joins       bool   // it replaces a process that was killed
	EndAfter    time.Duration
	Hosts       string // a letter per rank says on which host it pretends to be; "": all on one
}

var plays = map[string]func(*child){
	"rounds": playRounds, "killed": playKilled, "frozen": playFrozen, "failures": playFailures,
	"holders": playHolders, "ended": playEnded,
}

// child is a rank in its own process.
type child struct {
	rankSpec
	t *testing.T
	*rank
	cfg           cuda.Config
	numRendezvous int
}

// TestChild is a rank of the tests of processes; it is not a test of itself.
func TestChild(t *testing.T) {
	text := os.Getenv(rankVariable)
	if text == "" {
		t.Skip("it is for the tests of processes")
	}
	go func() { // the parent's end of the pipe is the life line
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	c := &child{t: t}
	require.NoError(t, json.Unmarshal([]byte(text), &c.rankSpec))
	c.cfg = configOf(t, c.Ranks)
	c.cfg.EndAfter = c.EndAfter
	if c.Fabric != "" {
		t.Setenv("EMULATOR_FABRIC", nth(c.Fabric, c.rankSpec.Rank))
	}
	c.begin()
	if !cudatest.OnDevice() { // a device may have fabric handles and lack an IMEX channel
		require.Equal(t, os.Getenv("EMULATOR_FABRIC") == "refused", c.NoFabric() != nil, "%v", c.NoFabric())
	}
	c.say("connected")
	plays[c.Play](c)
	c.exchange("over", nil)
	c.rank.close()
	c.say("closed")
}

func (c *child) say(format string, args ...any) { fmt.Printf("> "+format+"\n", args...) }

// begin makes the rank, as one of the first or as one that joins.
func (c *child) begin() {
	emu := cudatest.Open(c.t)
	emu.Schedule(c.Seed+uint64(c.rankSpec.Rank), 8, 8)
	params, err := c.cfg.Params(ep.Standing{})
	require.NoError(c.t, err)
	d, err := openDevice(c.t, emu)
	require.NoError(c.t, err)
	if c.Joins {
		c.numRendezvous = 1
	}
	metas, dom := c.open(d, shm.Config{
		Rank: c.rankSpec.Rank, NumRanks: c.Ranks, ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params,
	})
	c.cfg.Joining = c.Joins
	switch c.pathOf(c.rankSpec.Rank) {
	case "ipc":
		d.ShareByIPC()
	case "fabric":
		d.ShareByFabric()
	}
	c.rank = newRankOn(c.t, d, emu, dom, c.cfg)
	if c.Joins {
		c.install(metas, nil)
	} else {
		require.NoError(c.t, c.Connect(testTimeout))
	}
	for r := range c.Ranks {
		if r != c.self && c.Path != "" {
			require.Equal(c.t, c.pathOf(r), c.Buffer.Path(r))
		}
	}
}

// meet exchanges the metadata of a rendezvous.
func (c *child) meet(l interface{ Metadata() []byte }) [][]byte {
	c.numRendezvous++
	return c.exchange(fmt.Sprint("metadata", c.numRendezvous), l.Metadata())
}

func (c *child) install(metas [][]byte, commit func() error) {
	params := make([][]byte, c.Ranks)
	for r, m := range metas {
		if m != nil {
			params[r] = c.paramsOf(m)
		}
	}
	next, err := cuda.CheckParams(c.self, params)
	require.NoError(c.t, err)
	require.NoError(c.t, c.Install(next.Epoch, next.Next, commit, testTimeout))
	for i := range c.active.values {
		c.active.values[i] = 1
	}
}

// update takes part in another rendezvous of all ranks.
func (c *child) update() {
	st, err := c.Prepare()
	require.NoError(c.t, err)
	params, err := c.cfg.Params(st)
	require.NoError(c.t, err)
	metas, commit := c.reopen(params)
	c.install(metas, commit)
}

// exchange gives every rank's bytes to all but some, through files; each name
// once.
func (c *child) exchange(what string, own []byte, without ...int) [][]byte {
	name := func(r int) string { return filepath.Join(c.Dir, fmt.Sprint(what, "-", r)) }
	require.NoError(c.t, os.WriteFile(name(c.rankSpec.Rank)+".part", append([]byte{1}, own...), 0o600))
	require.NoError(c.t, os.Rename(name(c.rankSpec.Rank)+".part", name(c.rankSpec.Rank)))
	all := make([][]byte, c.Ranks)
	until := time.Now().Add(testTimeout)
	for r := range all {
		for all[r] == nil && !slices.Contains(without, r) {
			if text, err := os.ReadFile(name(r)); err == nil {
				all[r] = text[1:]
				break
			}
			require.True(c.t, time.Now().Before(until), "%s: rank %d never came", what, r)
			time.Sleep(time.Millisecond)
		}
	}
	return all
}

// await waits for a file of the parent's.
func (c *child) await(name string) {
	for until := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(c.Dir, name)); err == nil {
			return
		}
		require.True(c.t, time.Now().Before(until), "the parent does not say %s", name)
	}
}

// draw is one operation of all ranks, of which this one runs its own: all draw
// the same.
func (c *child) draw(rng *rand.Rand, mark uint64) (mine *op, all []*op) {
	c.used = mark
	for r := range c.Ranks {
		o := newOp(c.rank, rng)
		if all = append(all, o); r == c.self {
			mine = o
		}
	}
	return mine, all
}

func (c *child) rounds(n int, seed uint64) {
	rng := rand.New(rand.NewPCG(c.Seed, seed))
	mark := c.used
	for range n {
		mine, all := c.draw(rng, mark)
		mine.dispatch()
		c.sync()
		all[c.self] = mine
		checkRows(all, c.self)
		mine.combine()
		c.sync()
		mine.check()
		require.NoError(c.t, c.Err())
	}
	c.used = mark
}

// playRounds: rows and sums are those of plain loops.
func playRounds(c *child) { c.rounds(8, 1) }

// playFrozen: rank 1 is stopped, while it does nothing, and misses a deadline.
func playFrozen(c *child) {
	c.rounds(2, 1)
	rng := rand.New(rand.NewPCG(c.Seed, 3))
	mark := c.used
	mine, _ := c.draw(rng, mark)
	if c.self == 1 {
		c.say("idle")
		c.await("thawed")
		if c.Hosts != "" { // it hears of that over a connection
			require.Eventually(c.t, func() bool { return c.Err() != nil }, testTimeout, time.Millisecond)
		}
		require.ErrorIs(c.t, c.Dispatch(&mine.args, &mine.res, ep.PhaseDone), ep.ErrFenced)
	} else {
		c.await("frozen")
		mine.args.Timeout, mine.combin.Timeout = 10*time.Millisecond, 10*time.Millisecond
		mine.run()
		c.sync()
		mine.check(1)
		require.Equal(c.t, []int32{1, 0}, c.active.values)
		c.say("without it")
		// Its slots are used again when it has noticed, and not before.
		for range 3 {
			mine.args.Timeout, mine.combin.Timeout = -1, -1
			mine.run()
		}
		c.sync()
		mine.check(1)
		require.NoError(c.t, c.Err())
	}
	c.used = mark
	c.update()
	c.rounds(4, 2)
}

// playEnded: rank 1 is stopped and misses a deadline, rank 0 ends it and goes on;
// another process takes its place.
func playEnded(c *child) {
	if c.Joins {
		c.rounds(4, 2)
		return
	}
	c.rounds(2, 1)
	mark := c.used
	mine, _ := c.draw(rand.New(rand.NewPCG(c.Seed, 3)), mark)
	if c.self == 1 {
		c.say("idle")
		c.await("never")
	}
	c.await("frozen")
	mine.args.Timeout, mine.combin.Timeout = 10*time.Millisecond, 10*time.Millisecond
	mine.run()
	for range 3 { // in slots that rank 1 may write to until it has ended
		mine.args.Timeout, mine.combin.Timeout = -1, -1
		mine.run()
	}
	c.sync()
	mine.check(1)
	require.NoError(c.t, c.Err())
	events, _ := c.Events(0)
	last := events[len(events)-1]
	require.Equal(c.t, 1, last.Rank)
	require.Contains(c.t, last.Why, "its process was killed")
	c.say("gone")
	c.used = mark
	c.update()
	c.rounds(4, 2)
}

// playHolders: rank 0 cannot close while the process of rank 1 has its memory
// open, whether for its buffer or otherwise, and can when it has not.
func playHolders(c *child) {
	if c.self == 1 {
		v, err := c.mapOther(1 << 20)
		require.NoError(c.t, err)
		c.exchange("held", fmt.Append(nil, os.Getpid()))
		c.exchange("refused", nil)
		require.NoError(c.t, c.Leave()) // its own memory stays
		require.NoError(c.t, c.Leave())
		require.Empty(c.t, c.Buffer.Path(0))
		c.exchange("left", nil)
		c.exchange("refused again", nil)
		require.NoError(c.t, v.Close())
		c.exchange("closed", nil)
		return
	}
	pid := string(c.exchange("held", nil)[1])
	refused := func() {
		c.SetDrainTimeout(50 * time.Millisecond)
		err := c.Buffer.Close()
		for err != nil && strings.HasPrefix(err.Error(), "after ") { // a busy machine: not yet idle
			err = c.Buffer.Close()
		}
		require.EqualError(c.t, err, "process "+pid+" has this rank's memory open by its IPC handle")
		c.SetDrainTimeout(testTimeout)
	}
	refused()
	c.exchange("refused", nil)
	c.exchange("left", nil)
	refused()
	c.exchange("refused again", nil)
	require.NoError(c.t, c.Buffer.Close())
	c.exchange("closed", nil)
}
