package cpu_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/internal/testenv"
)

// The devices that the machine of tests/rdma has, each on a network of its own.
const (
	softDevice  = "rxe0"
	otherDevice = "rxe1"
)

func (s *groupSpec) device(rank int) string {
	if s.Devices != nil {
		return s.Devices[rank]
	}
	if s.Hosts[rank] < 'a' {
		return otherDevice
	}
	return softDevice
}

func needDevice(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/class/infiniband/" + softDevice); err != nil {
		testenv.Lacking(t, "verbs", "no soft-RoCE device "+softDevice+": run in the machine of tests/rdma")
	}
}

// processes are the ranks of a group as their parent sees them.
type processes struct {
	t   *testing.T
	dir string
	all []*testenv.Process
}

// startProcesses starts every rank of a group; spec.Dir is made here.
func startProcesses(t *testing.T, spec groupSpec) *processes {
	t.Helper()
	const key = "1 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde0"
	spec.Dir = t.TempDir()
	g := &processes{t: t, dir: spec.Dir}
	for r := range spec.Hosts {
		text, err := json.Marshal(rankSpec{spec, r})
		require.NoError(t, err)
		words := []string{os.Args[0]}
		if spec.command != nil {
			words = spec.command(r, words...)
		}
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Env = append(os.Environ(), rankVariable+"="+string(text), keyVariable+"="+key)
		g.all = append(g.all, testenv.StartProcess(t, cmd, processTimeout))
	}
	return g
}

// finish expects ranks to end well. check is called when all have closed what
// they had, and none has ended.
func (g *processes) finish(check func(), ranks ...int) {
	g.t.Helper()
	for _, rank := range ranks {
		g.all[rank].Await("closed")
	}
	check()
	g.tell(leaveFile)
	for _, rank := range ranks {
		require.NoError(g.t, g.all[rank].Wait(), "rank %d", rank)
	}
}

// tell makes a file that ranks wait for.
func (g *processes) tell(name string) {
	g.t.Helper()
	require.NoError(g.t, os.WriteFile(filepath.Join(g.dir, name), nil, 0o600))
}

// except lists all ranks but one.
func (g *processes) except(one int) (ranks []int) {
	for r := range g.all {
		ranks = append(ranks, r)
	}
	return slices.DeleteFunc(ranks, func(r int) bool { return r == one })
}

// wantPaths is what "paths" of a rank must be.
func (s *groupSpec) wantPaths(rank int) string {
	var words []string
	for r := range s.Hosts {
		switch {
		case r == rank:
			words = append(words, "self")
		case s.Hosts[r] == s.Hosts[rank]:
			words = append(words, "shm")
		case s.Setting == multihost.RDMA, s.Setting != multihost.TCP && s.device(r) == s.device(rank):
			words = append(words, "verbs")
		default:
			words = append(words, "tcp")
		}
	}
	return strings.Join(words, " ")
}

// resources is what the kernel has of RDMA objects, of all processes.
func resources(t *testing.T) (text string) {
	t.Helper()
	for _, kind := range []string{"pd", "cq", "qp", "mr"} {
		out, err := exec.Command("rdma", "-j", "resource", "show", kind).Output()
		require.NoError(t, err)
		var all []any
		require.NoError(t, json.Unmarshal(out, &all), "%s", out)
		text += fmt.Sprintf("%d %s, ", len(all), kind)
	}
	return text
}

// playGroup runs a group to its end and returns what its ranks have said of
// their bits.
func playGroup(t *testing.T, spec groupSpec, check func()) (outs, bits []string) {
	t.Helper()
	begin := time.Now()
	g := startProcesses(t, spec)
	for r := range g.all {
		require.Equal(t, spec.wantPaths(r), g.all[r].Await("paths"))
	}
	for r := range g.all {
		outs, bits = append(outs, g.all[r].Await("outs")), append(bits, g.all[r].Await("bits"))
	}
	g.finish(check, g.except(-1)...)
	t.Logf("%s over %v: %v", spec.Hosts, spec.Setting, time.Since(begin).Round(time.Millisecond))
	return outs, bits
}

// TestProcesses: groups of processes get what the definition says: over sockets, over
// RDMA, and over both where devices do not reach one another, apart and in pairs. Every
// bit of it is what the same group gets in shared memory. No RDMA object is left.
func TestProcesses(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		spec := groupSpec{Seed: testenv.Seed(t), Killed: -1}
		oneHost := spec
		oneHost.Hosts, oneHost.Setting, oneHost.Deterministic = "aaaa"[:ranks], multihost.Shm, true
		outs, bits := playGroup(t, oneHost, func() {})
		for _, placement := range []struct {
			hosts         string
			setting       multihost.Setting
			deterministic bool
		}{
			{"abcd", multihost.TCP, false},
			{"abcd", multihost.RDMA, true},
			{"aabb", multihost.RDMA, false},
			{"aBbA", multihost.Auto, true},
		} {
			spec := spec
			spec.Hosts, spec.Setting, spec.Deterministic = placement.hosts[:ranks], placement.setting, placement.deterministic
			if spec.Hosts == "aa" {
				continue
			}
			t.Run(fmt.Sprintf("%v-%s", spec.Setting, spec.Hosts), func(t *testing.T) {
				gotOuts, gotBits := playGroup(t, spec, expectNothingLeft(t, spec))
				require.Equal(t, outs, gotOuts)
				if spec.Deterministic { // else rows lie as they came
					require.Equal(t, bits, gotBits)
				}
			})
		}
	}
}

// expectNothingLeft looks at the kernel's objects before and, when what it
// returns is called, after: what a killed process had goes with it, soon.
func expectNothingLeft(t *testing.T, spec groupSpec) (check func()) {
	t.Helper()
	if spec.Setting == multihost.TCP {
		return func() {}
	}
	needDevice(t)
	before := resources(t)
	return func() {
		t.Helper()
		for until := time.Now().Add(processTimeout); resources(t) != before; time.Sleep(10 * time.Millisecond) {
			require.True(t, time.Now().Before(until), "before: %s now: %s", before, resources(t))
		}
	}
}

// TestProcessKilled kills a rank somewhere in the middle. The others go on
// without it, and no RDMA object is left.
func TestProcessKilled(t *testing.T) {
	for _, placement := range []struct {
		hosts   string
		setting multihost.Setting
		target  int
	}{
		{"abcd", multihost.TCP, 1},
		{"ab", multihost.RDMA, 0},
		{"abcd", multihost.RDMA, 1},
		{"aabb", multihost.RDMA, 2},
		{"aabb", multihost.RDMA, 0},
	} {
		t.Run(fmt.Sprintf("%v-%s-%d", placement.setting, placement.hosts, placement.target), func(t *testing.T) {
			spec := groupSpec{Hosts: placement.hosts, Setting: placement.setting, Seed: testenv.Seed(t), Killed: placement.target}
			check := expectNothingLeft(t, spec)
			g := startProcesses(t, spec)
			r := rand.New(rand.NewPCG(spec.Seed, 2))
			round := r.IntN(roundsBeforeKill - 1)
			g.all[spec.Killed].Await(fmt.Sprintf("round %d", round))
			time.Sleep(time.Duration(r.IntN(20_000)) * time.Microsecond)
			require.NoError(t, g.all[spec.Killed].Process.Kill())
			begin := time.Now()
			g.finish(check, g.except(spec.Killed)...)
			t.Logf("killed after round %d, the others were through %v later", round, time.Since(begin).Round(time.Millisecond))
		})
	}
}
