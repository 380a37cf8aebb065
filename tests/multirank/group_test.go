package multirank

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/shm"
)

// roles are what a child process can be; the test binary starts itself.
var roles = map[string]func(*env) error{}

// TestMain runs a role instead of the tests when the environment names one.
func TestMain(m *testing.M) {
	if role := os.Getenv("MULTIRANK_ROLE"); role != "" {
		if err := runRole(roles[role]); err != nil {
			fmt.Fprintln(os.Stderr, "rank", os.Getenv("MULTIRANK_RANK"), "failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// env is one child process.
type env struct {
	rank, ranks int
	dir         string // where ranks leave their metadata
	buf         *cpu.Buffer
	before      usage // of this process, when it had nothing of ours
	took        phases
}

// phases is how long the parts of a start took.
type phases struct{ open, meet time.Duration }

func (e *env) int(name string) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		panic(err)
	}
	return n
}

// say tells the parent something.
func (e *env) say(text string) { fmt.Println(text) }

func runRole(role func(*env) error) error {
	e := &env{dir: os.Getenv("MULTIRANK_DIR")}
	e.rank, e.ranks = e.int("MULTIRANK_RANK"), e.int("MULTIRANK_RANKS")
	if err := e.connect(); err != nil {
		return err
	}
	if err := role(e); err != nil {
		return err
	}
	return e.buf.Close()
}

// connect meets the other ranks through files.
func (e *env) connect() error {
	measure() // the runtime opens its own descriptors with the first file
	e.before = measure()
	cfg := ep.Config{NumBytes: 4 << 30}
	params, err := cpu.Params(cfg, ep.Standing{})
	if err != nil {
		return err
	}
	begin := time.Now()
	l, err := shm.Open(shm.Config{Rank: e.rank, NumRanks: e.ranks, ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params})
	if err != nil {
		return err
	}
	e.took.open = time.Since(begin)
	all, err := e.exchange("", l.Metadata())
	if err != nil {
		return err
	}
	begin = time.Now()
	defer func() { e.took.meet = time.Since(begin) }()
	dom, err := l.Connect(all, 30*time.Second)
	if err != nil {
		return err
	}
	kern, err := kernels.New(0)
	if err != nil {
		return err
	}
	e.buf, err = cpu.New(dom, kern, cfg)
	return err
}

// exchange gives every rank's bytes to all, through files; each name once.
func (e *env) exchange(what string, own []byte) ([][]byte, error) {
	name := func(r int) string { return filepath.Join(e.dir, what+strconv.Itoa(r)) }
	if err := os.WriteFile(name(e.rank)+".tmp", own, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(name(e.rank)+".tmp", name(e.rank)); err != nil {
		return nil, err
	}
	all := make([][]byte, e.ranks)
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		missing := 0
		for r := range all {
			if all[r] != nil {
				continue
			}
			if data, err := os.ReadFile(name(r)); err == nil {
				all[r] = data
			} else {
				missing++
			}
		}
		if missing == 0 {
			return all, nil
		}
		if time.Now().After(until) {
			return nil, fmt.Errorf("%d ranks never came", missing)
		}
	}
}

// group is the parent's view of the children.
type group struct {
	t    testing.TB
	cmds []*exec.Cmd
	logs []*log
}

// log collects one child's output and lets the parent wait for a line.
type log struct {
	mu    sync.Mutex
	lines []string
	done  chan error
}

func startGroup(t testing.TB, role string, ranks int, extra ...string) *group {
	g := &group{t: t}
	dir := t.TempDir()
	for r := range ranks {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), append(extra, "MULTIRANK_ROLE="+role, "MULTIRANK_DIR="+dir,
			fmt.Sprintf("MULTIRANK_RANK=%d", r), fmt.Sprintf("MULTIRANK_RANKS=%d", ranks))...)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr = cmd.Stdout
		require.NoError(t, cmd.Start())
		l := &log{done: make(chan error, 1)}
		go l.follow(cmd, out)
		g.cmds, g.logs = append(g.cmds, cmd), append(g.logs, l)
	}
	t.Cleanup(g.end)
	return g
}

func (l *log) follow(cmd *exec.Cmd, out io.Reader) {
	for s := bufio.NewScanner(out); s.Scan(); {
		l.mu.Lock()
		l.lines = append(l.lines, s.Text())
		l.mu.Unlock()
	}
	l.done <- cmd.Wait()
}

func (l *log) has(line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, have := range l.lines {
		if have == line {
			return true
		}
	}
	return false
}

// await blocks until every rank has said the line.
func (g *group) await(line string, limit time.Duration) {
	g.t.Helper()
	require.Eventually(g.t, func() bool {
		for _, l := range g.logs {
			if !l.has(line) {
				return false
			}
		}
		return true
	}, limit, time.Millisecond, "not every rank said %q", line)
}

func (g *group) kill(rank int) { require.NoError(g.t, g.cmds[rank].Process.Kill()) }

func (g *group) killAll() {
	for r, cmd := range g.cmds {
		g.kill(r)
		<-g.logs[r].done
		_ = cmd
	}
}

// wait expects every rank to end well.
func (g *group) wait(limit time.Duration) {
	g.t.Helper()
	ranks := make([]int, len(g.cmds))
	for r := range ranks {
		ranks[r] = r
	}
	g.waitFor(limit, ranks...)
}

func (g *group) waitFor(limit time.Duration, ranks ...int) {
	g.t.Helper()
	deadline := time.After(limit)
	for _, r := range ranks {
		select {
		case err := <-g.logs[r].done:
			require.NoError(g.t, err, "rank %d", r)
		case <-deadline:
			g.t.Fatalf("rank %d did not end within %v", r, limit)
		}
	}
}

// end stops what still runs and shows every rank's log of a failed test.
func (g *group) end() {
	for r, cmd := range g.cmds {
		_ = cmd.Process.Kill()
		if g.t.Failed() {
			g.logs[r].mu.Lock()
			g.t.Logf("rank %d:\n%s", r, strings.Join(g.logs[r].lines, "\n"))
			g.logs[r].mu.Unlock()
		}
	}
}
