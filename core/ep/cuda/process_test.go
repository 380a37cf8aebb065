package cuda_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/testenv"
)

// processes are the ranks of a group as their parent sees them, in the order in which they
// were started.
type processes struct {
	t   *testing.T
	dir string
	all []*testenv.Process
}

// startProcesses starts every rank of a group.
func startProcesses(t *testing.T, spec rankSpec) *processes {
	t.Helper()
	cudatest.Open(t) // compiles the emulator once, or skips
	g := &processes{t: t, dir: t.TempDir()}
	for r := range spec.Ranks {
		g.start(spec, r)
	}
	return g
}

func (g *processes) start(spec rankSpec, rank int) {
	spec.Rank, spec.Dir = rank, g.dir
	text, err := json.Marshal(spec)
	require.NoError(g.t, err)
	cmd := exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), rankVariable+"="+string(text))
	g.all = append(g.all, testenv.StartProcess(g.t, cmd, testTimeout))
}

// await reads what a process says, up to a line that begins so.
func (g *processes) await(at int, line string) {
	g.t.Helper()
	g.all[at].Await("> " + line)
}

func (g *processes) tell(name string) {
	require.NoError(g.t, os.WriteFile(filepath.Join(g.dir, name), nil, 0o600))
}

// finish expects processes to end well.
func (g *processes) finish(which ...int) {
	g.t.Helper()
	for _, at := range which {
		g.await(at, "closed")
	}
	for _, at := range which {
		require.NoError(g.t, g.all[at].Wait(), "process %d", at)
	}
}

// TestProcesses: ranks that are processes map one another's memory, by
// descriptors and by IPC handles, and get what plain loops say.
func TestProcesses(t *testing.T) {
	for _, c := range []struct {
		path  string
		ranks int
	}{{"fd", 2}, {"ipc", 2}, {"ipc", 4}} {
		t.Run(fmt.Sprintf("%s/ranks=%d", c.path, c.ranks), func(t *testing.T) {
			g := startProcesses(t, rankSpec{Ranks: c.ranks, Play: "rounds", Path: c.path, Seed: testenv.Seed(t)})
			var all []int
			for r := range c.ranks {
				all = append(all, r)
			}
			g.finish(all...)
		})
	}
}

// eachWay is for memory that others have by a descriptor, and by an IPC handle.
func eachWay(t *testing.T, play func(t *testing.T, path string)) {
	for _, path := range []string{"fd", "ipc"} {
		t.Run(path, func(t *testing.T) { play(t, path) })
	}
}

// TestProcessKilled kills one of three in the middle: the others go on, and a
// process that joins takes its place.
func TestProcessKilled(t *testing.T) {
	eachWay(t, func(t *testing.T, path string) {
		spec := rankSpec{Ranks: 3, Play: "killed", Path: path, Seed: testenv.Seed(t)}
		g := startProcesses(t, spec)
		took := g.replaceKilled(t, spec)
		require.Less(t, took, killedBound)
	})
}

// replaceKilled kills rank 1 of three in the middle of a round, and starts another
// process in its place once the others know. It returns how long after that the
// streams of those were done that waited for it.
func (g *processes) replaceKilled(t *testing.T, spec rankSpec) (took time.Duration) {
	rng := rand.New(rand.NewPCG(spec.Seed, 9))
	g.await(1, "round "+strconv.Itoa(rng.IntN(6)))
	time.Sleep(time.Duration(rng.IntN(5000)) * time.Microsecond)
	killed := time.Now()
	require.NoError(t, g.all[1].Process.Kill())
	g.await(0, "gone")
	g.await(2, "gone")
	took = g.endedAfter(killed, 0, 2)
	t.Logf("from kill -9 to the end of the others' streams: %v", took)
	spec.Joins = true
	g.start(spec, 1)
	g.finish(0, 2, 3)
	return took
}

// TestProcessFrozen stops a process: the other rank goes on at its deadline, uses its
// slots again once the stopped one has noticed, and takes it back by an update.
func TestProcessFrozen(t *testing.T) {
	eachWay(t, func(t *testing.T, path string) {
		g := startProcesses(t, rankSpec{Ranks: 2, Play: "frozen", Path: path, Seed: testenv.Seed(t)})
		g.freezeOne(t)
	})
}

// freezeOne stops rank 1 of two until rank 0 has gone on without it.
func (g *processes) freezeOne(t *testing.T) {
	g.await(1, "idle")
	stopped := g.all[1].Process
	require.NoError(t, stopped.Signal(syscall.SIGSTOP))
	g.tell("frozen")
	g.await(0, "without it")
	require.NoError(t, stopped.Signal(syscall.SIGCONT))
	g.tell("thawed")
	g.finish(0, 1)
}

// TestProcessEnded stops a process for good: the rank that waits for it kills it, where
// that was asked for, and goes on in its slots without an update.
func TestProcessEnded(t *testing.T) {
	eachWay(t, func(t *testing.T, path string) {
		spec := rankSpec{Ranks: 2, Play: "ended", Path: path, Seed: testenv.Seed(t), EndAfter: 20 * time.Millisecond}
		g := startProcesses(t, spec)
		g.await(1, "idle")
		stopped := g.all[1]
		require.NoError(t, stopped.Process.Signal(syscall.SIGSTOP))
		g.tell("frozen")
		g.await(0, "gone")
		var ended *exec.ExitError
		require.ErrorAs(t, stopped.Wait(), &ended)
		require.Equal(t, syscall.SIGKILL, ended.Sys().(syscall.WaitStatus).Signal())
		spec.Joins = true
		g.start(spec, 1)
		g.finish(0, 2)
	})
}

// TestProcessHolds: memory that another process has open by its IPC handle is
// freed when that has closed it, and not before.
func TestProcessHolds(t *testing.T) {
	g := startProcesses(t, rankSpec{Ranks: 2, Play: "holders", Path: "ipc", Seed: testenv.Seed(t)})
	g.finish(0, 1)
}
