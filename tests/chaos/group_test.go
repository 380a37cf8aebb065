package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport/shm"
)

// patience is how long the parent waits for anything. Nothing takes a tenth
// of it, except on a machine that is busy with much else.
const patience = 30 * time.Second

// options of a group's children.
type options struct {
	ranks    int
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
	current  []*child // by rank: who has the number; nil: nobody
	sockets  []string
	history  []string
	term     uint64
	seq      int
	founded  int // groups: one that has lost everybody cannot go on
}

type note struct {
	c    *child
	ev   event
	exit bool
	err  error
}

// child is one process, as far as it has told.
type child struct {
	rank    int
	cmd     *exec.Cmd
	in      *json.Encoder
	stderr  safeBuffer
	ended   bool
	doomed  bool // its end is expected
	stopped bool
	playing bool
	fenced  bool
	seq     int
	answer  event // the last one that belongs to a meeting
	fault   fault // the last one that it was told to arm
	fired   *event
	cleared bool // it has disarmed
	struck  bool // a fault of this round has hit it
	set     uint64
	setAt   int64
	steps   uint64
	gap     time.Duration
	closed  bool
	closing bool // it was told to
	home    int  // the group that it is of, from 1 on
	hello   bool
}

// safeBuffer is written by exec's goroutine.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
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
		fmt.Sprintf("CHAOS_SEED=%d", g.seed), fmt.Sprintf("CHAOS_TIMEOUT=%d", g.timeout),
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
	c.doomed = c.doomed || sig == syscall.SIGKILL
	_ = c.cmd.Process.Signal(sig) // it may be ending
}

func (g *group) log(format string, args ...any) {
	g.history = append(g.history, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// await takes in what children tell until the condition holds.
func (g *group) await(what string, cond func() bool) {
	g.t.Helper()
	if !g.within(patience, cond) {
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
		if !c.doomed && (!c.closed || n.err != nil) {
			g.fatal(fmt.Sprintf("%v ended on its own: %v", c, n.err))
		}
		return
	}
	c.apply(g, n.ev)
}

// apply notes what a child has told.
func (c *child) apply(g *group, e event) {
	g.t.Helper()
	if e.What != "step" || e.Set != c.set {
		g.log("%v: %s seq %d set %b step %d gap %v %v %s", c, e.What, e.Seq, e.Set, e.Steps, e.Gap, e.Point, e.Text)
	}
	switch e.What {
	case "wrong":
		if g.corrupt {
			c.doomed, c.answer = true, e
			return
		}
		g.fatal(fmt.Sprintf("%v: %s", c, e.Text))
	case "fired":
		c.fires(g, e)
		return
	case "disarmed":
		c.cleared = true
	case "step", "installed":
		if e.Set != c.set {
			c.setAt = e.At
		}
		c.set, c.steps, c.playing = e.Set, e.Steps, true
	case "fenced":
		c.fenced, c.playing = true, false
	case "hello":
		c.hello = true
	case "closed":
		c.closed, c.playing = true, false
	}
	c.gap = e.Gap
	if e.What == "metadata" || e.What == "connected" || e.What == "failed" || e.What == "installed" {
		c.answer = e
	}
	if e.What == "metadata" {
		c.playing, c.fenced = false, false
		info, err := shm.ParseMetadata(e.Data)
		require.NoError(g.t, err)
		g.sockets = append(g.sockets, info.Socket)
	}
}

// fires notes that a fault strikes. One that is short ends by itself.
func (c *child) fires(g *group, e event) {
	c.fired = &e
	switch c.fault.Kind {
	case kill:
		c.doomed = true
	case stop:
		c.stopped = true
	case stopShort:
		process, length := c.cmd.Process, c.fault.For
		go func() {
			awaitStop(process.Pid)
			time.Sleep(length)
			_ = process.Signal(syscall.SIGCONT)
		}()
	}
}

// awaitStop waits until a process has stopped that said that it will.
func awaitStop(pid int) {
	for range 5000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, rest, _ := strings.Cut(string(stat), ") "); err != nil || strings.HasPrefix(rest, "T") {
			return
		}
		time.Sleep(time.Millisecond)
	}
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

func (c *child) String() string { return fmt.Sprintf("rank %d (%d)", c.rank, c.cmd.Process.Pid) }

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
			c.doomed = true
			_ = c.cmd.Process.Kill()
		}
	}
	for over := time.After(patience); ; {
		left := 0
		for _, c := range g.children {
			if !c.ended {
				left++
			}
		}
		if left == 0 {
			close(g.starter)
			return
		}
		select {
		case n := <-g.notes:
			n.c.ended = n.c.ended || n.exit
		case <-over:
			g.t.Errorf("%d processes cannot be killed", left)
			return
		}
	}
}

// playing returns the ranks that take part now, and are not stopped.
func (g *group) playing() (cs []*child) {
	for _, c := range g.current {
		if c != nil && c.playing && !c.ended && !c.stopped && !c.doomed {
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
	sockets, err := os.ReadFile("/proc/net/unix")
	require.NoError(g.t, err)
	for _, name := range g.sockets {
		require.NotContains(g.t, string(sockets), name)
	}
	for _, c := range g.children {
		require.ErrorIs(g.t, syscall.Kill(c.cmd.Process.Pid, 0), syscall.ESRCH, "%v", c)
	}
}
