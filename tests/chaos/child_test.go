package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
)

// child is one process, as far as it has told.
type child struct {
	rank        int
	cmd         *exec.Cmd
	in          *json.Encoder
	stderr      safeBuffer
	ended       bool
	endExpected bool // its end is expected
	stopped     bool
	playing     bool
	fenced      bool
	answer      event // the last one that belongs to a rendezvous
	fault       fault // the last one that it was told to arm
	fired       *event
	cleared     bool // it has disarmed
	struck      bool // a fault of this round has hit it
	set         rankset.Set
	setAt       int64
	steps       uint64
	gap         time.Duration
	peak        time.Duration // of gaps, since all were well
	closed      bool
	closing     bool // it was told to
	home        int  // the group that it is of, from 1 on
	hello       bool
	forked      time.Time // it has a child that holds its sockets since then
}

// held reports whether a child may hold the sockets of a process, beyond its end.
func (c *child) held() bool { return time.Since(c.forked) < holdFor+time.Second }

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

// apply notes what a child has told.
func (c *child) apply(g *group, e event) {
	g.t.Helper()
	if e.What != "step" || rankset.FromWord(e.Set) != c.set {
		g.log("%v: %s seq %d set %b step %d gap %v %v %s", c, e.What, e.Seq, e.Set, e.Steps, e.Gap, e.Point, e.Text)
	}
	switch e.What {
	case "wrong":
		c.errs(g, e)
	case "fired":
		c.fires(g, e)
		return // it knows nothing of its gaps there
	case "disarmed":
		c.cleared = true
	case "hello":
		c.hello = true
	case "forked":
		c.forked = time.Now()
	case "step":
		c.goesOn(e)
	case "fenced":
		c.fenced, c.playing = true, false
	case "closed":
		c.closed, c.playing = true, false
	default:
		c.meets(g, e)
	}
	c.gap, c.peak = e.Gap, max(c.peak, e.Gap)
}

// errs: something is not as it must be, and the child ends.
func (c *child) errs(g *group, e event) {
	g.t.Helper()
	if !g.corrupt {
		g.fatal(fmt.Sprintf("%v: %s", c, e.Text))
	}
	c.endExpected, c.answer = true, e
}

// goesOn notes which members a playing child sees, and since when.
func (c *child) goesOn(e event) {
	if rankset.FromWord(e.Set) != c.set {
		c.setAt = e.At
	}
	c.set, c.steps, c.playing = rankset.FromWord(e.Set), e.Steps, true
}

// meets notes an answer in a rendezvous.
func (c *child) meets(g *group, e event) {
	c.answer = e
	switch e.What {
	case "installed":
		c.goesOn(e)
	case "metadata":
		c.playing, c.fenced = false, false
		info, err := multihost.ParseMetadata(e.Data)
		require.NoError(g.t, err)
		g.sockets = append(g.sockets, info.Shm.Socket)
	}
}

// fires notes that a fault strikes. A short fault ends by itself.
func (c *child) fires(g *group, e event) {
	c.fired = &e
	switch c.fault.Kind {
	case kill:
		c.endExpected = true
	case stop:
		c.stopped = true
	case stopShort:
		go continueAfter(c.cmd.Process, c.fault.For)
	}
}

func continueAfter(p *os.Process, d time.Duration) {
	awaitStop(p.Pid)
	time.Sleep(d)
	_ = p.Signal(syscall.SIGCONT) // it may have ended
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

func (c *child) String() string { return fmt.Sprintf("rank %d (%d)", c.rank, c.cmd.Process.Pid) }
