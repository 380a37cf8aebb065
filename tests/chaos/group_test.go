package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

// testTimeout is how long the parent waits for anything. Nothing takes a tenth
// of it, except on a machine that is busy with much else.
const testTimeout = 30 * time.Second

// options of a group's children.
type options struct {
	ranks    int
	place    place
	seed     uint64
	timeout  time.Duration // of every call; negative: none
	resident int64         // bytes of ordinary memory that each child touches
	corrupt  bool          // combines give wrong bits, and that is to be noticed
}

// group is the parent's view of its children. All methods are for the test's
// own goroutine.
type group struct {
	t *testing.T
	options
	notes    chan note
	starter  chan func()
	children []*child
	current  []*child // by rank: the child that has the number; nil: none
	sockets  []string
	history  []string
	term     uint64
	agreed   rankset.Set // the members, as all ranks saw them last
	seq      int
	founded  int // groups: one that has lost all ranks cannot go on
}

type note struct {
	c    *child
	ev   event
	exit bool
	err  error
}

func newGroup(t *testing.T, o options) *group {
	g := &group{t: t, options: o, notes: make(chan note, 1024), starter: make(chan func()), current: make([]*child, o.ranks)}
	go func() { // children get a signal when the thread ends that started them
		runtime.LockOSThread()
		for f := range g.starter {
			f()
		}
	}()
	t.Cleanup(g.end)
	return g
}

// start makes a process that is to have a rank's number.
func (g *group) start(rank int) *child {
	c := &child{rank: rank, cmd: exec.Command(os.Args[0], "-test.run=^$")}
	c.cmd.Env = append(os.Environ(), fmt.Sprintf("CHAOS_RANK=%d", rank), fmt.Sprintf("CHAOS_RANKS=%d", g.ranks),
		fmt.Sprintf("CHAOS_PLACE=%d", g.place), fmt.Sprintf("CHAOS_SEED=%d", g.seed), fmt.Sprintf("CHAOS_TIMEOUT=%d", g.timeout),
		fmt.Sprintf("CHAOS_RESIDENT=%d", g.resident), fmt.Sprintf("CHAOS_CORRUPT=%d", btoi(g.corrupt)))
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = &c.stderr
	in, err := c.cmd.StdinPipe()
	require.NoError(g.t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(g.t, err)
	c.in = json.NewEncoder(in)
	started := make(chan error)
	g.starter <- func() { started <- c.cmd.Start() }
	require.NoError(g.t, <-started)
	g.children = append(g.children, c)
	go func() {
		decode(out, func(e event) { g.notes <- note{c: c, ev: e} })
		g.notes <- note{c: c, exit: true, err: c.cmd.Wait()}
	}()
	return c
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (g *group) tell(c *child, cmd command) {
	if !c.ended {
		_ = c.in.Encode(cmd) // it may have ended
	}
}

// signal sends a signal to a child that has not been waited for.
func (g *group) signal(c *child, sig syscall.Signal) {
	if c.ended {
		return
	}
	c.stopped = sig == syscall.SIGSTOP || c.stopped && sig != syscall.SIGCONT
	c.endExpected = c.endExpected || sig == syscall.SIGKILL
	_ = c.cmd.Process.Signal(sig) // it may be ending
}

func (g *group) log(format string, args ...any) {
	g.history = append(g.history, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// await takes in what children tell until the condition holds.
func (g *group) await(what string, cond func() bool) {
	g.t.Helper()
	if !g.within(testTimeout, cond) {
		g.fatal("timeout: " + what)
	}
}

// within is await that may fail.
func (g *group) within(limit time.Duration, cond func() bool) bool {
	g.t.Helper()
	over := time.NewTimer(limit)
	defer over.Stop()
	for !cond() {
		select {
		case n := <-g.notes:
			g.apply(n)
		case <-over.C:
			return cond()
		}
	}
	return true
}

// pass takes in what children tell for a while.
func (g *group) pass(d time.Duration) { g.within(d, func() bool { return false }) }

func (g *group) apply(n note) {
	g.t.Helper()
	c := n.c
	if n.exit {
		g.log("%v ended: %v", c, n.err)
		c.ended, c.playing = true, false
		if !c.endExpected && (!c.closed || n.err != nil) {
			g.fatal(fmt.Sprintf("%v ended on its own: %v", c, n.err))
		}
		return
	}
	c.apply(g, n.ev)
}

// fatal ends the test with all that is known.
func (g *group) fatal(why string) {
	g.t.Helper()
	var stacks strings.Builder
	for _, c := range g.children {
		if !c.ended {
			g.signal(c, syscall.SIGQUIT)
			g.signal(c, syscall.SIGCONT)
		}
	}
	time.Sleep(time.Second)
	for _, c := range g.children {
		if text := c.stderr.String(); text != "" {
			fmt.Fprintf(&stacks, "---- %v\n%.20000s\n", c, text)
		}
	}
	g.t.Fatalf("%s\nMOEWIRE_SEED=%d, term %d\nlast events:\n%s\n%s", why, g.seed, g.term, g.recent(120), stacks.String())
}

// recent returns the last events.
func (g *group) recent(n int) string {
	return strings.Join(g.history[max(0, len(g.history)-n):], "\n")
}

// end kills what is left.
func (g *group) end() {
	for _, c := range g.children {
		if !c.ended {
			_ = c.cmd.Process.Kill()
		}
	}
	for over := time.After(testTimeout); g.live() > 0; {
		select {
		case n := <-g.notes:
			n.c.ended = n.c.ended || n.exit
		case <-over:
			g.t.Errorf("%d processes cannot be killed", g.live())
			return
		}
	}
	close(g.starter)
}

// resume ends a stop.
func (g *group) resume(c *child) {
	if c.stopped && !c.ended {
		if c.fired != nil {
			awaitStop(c.cmd.Process.Pid)
		}
		g.signal(c, syscall.SIGCONT)
		g.log("%v resumed", c)
	}
}

// playing returns the ranks that take part now, and are not stopped.
func (g *group) playing() (cs []*child) {
	for _, c := range g.current {
		if c != nil && c.playing && !c.ended && !c.stopped && !c.endExpected {
			cs = append(cs, c)
		}
	}
	return cs
}

func (g *group) live() (n int) {
	for _, c := range g.children {
		if !c.ended {
			n++
		}
	}
	return n
}

// finish closes every rank that lives, and wants nothing to be left.
func (g *group) finish() {
	g.t.Helper()
	for _, c := range g.children {
		if !c.ended {
			g.resume(c)
			g.tell(c, command{What: "close"})
		}
	}
	g.await("the end of all ranks", func() bool { return g.live() == 0 })
	for slices.ContainsFunc(g.children, (*child).held) {
		time.Sleep(100 * time.Millisecond) // until children of ranks have ended, too
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	require.NoError(g.t, err)
	for _, name := range g.sockets {
		require.NotContains(g.t, string(sockets), name)
	}
	for _, c := range g.children {
		require.ErrorIs(g.t, syscall.Kill(c.cmd.Process.Pid, 0), syscall.ESRCH, "%v", c)
	}
}
