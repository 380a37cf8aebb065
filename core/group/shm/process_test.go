package shm

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/testenv"
)

// child is one rank's process as the test sees it.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(t *testing.T, rank, numRanks int, best livenessKind, attr *syscall.SysProcAttr) *child {
	t.Helper()
	return startChildWith(t, rank, numRanks, best, attr)
}

func startChildWith(t *testing.T, rank, numRanks int, best livenessKind, attr *syscall.SysProcAttr, env ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d,%d,%d", childVariable, rank, numRanks, best))
	c.cmd.Env = append(c.cmd.Env, env...)
	c.cmd.SysProcAttr, c.cmd.Stderr = attr, os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	return c
}

func (c *child) tell(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// expectLine reads a line and checks how it begins.
func (c *child) expectLine(prefix string) string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, prefix) {
		c.t.Fatalf("process %d: %q, %v, expected %q", c.cmd.Process.Pid, line, err, prefix)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, prefix))
}

// meet starts n ranks and gives them one another's metadata.
func meet(t *testing.T, n int, best livenessKind) []*child {
	t.Helper()
	children, all := make([]*child, n), make([]string, n)
	for r := range n {
		children[r] = startChild(t, r, n, best, nil)
	}
	for r, c := range children {
		all[r] = c.expectLine("metadata")
	}
	for _, c := range children {
		c.tell(strings.Join(all, "\n"))
	}
	return children
}

func TestProcesses(t *testing.T) {
	for _, n := range []int{2, 3, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			children := meet(t, n, byPeerPidfd)
			for _, c := range children {
				c.expectLine("connected")
			}
			for _, c := range children {
				c.tell("ring 200")
			}
			for _, c := range children {
				c.expectLine("rung")
			}
			for _, c := range children {
				c.tell("close")
				c.expectLine("closed")
				c.tell("exit")
			}
		})
	}
}

func TestKilledProcessIsLost(t *testing.T) {
	for _, best := range []livenessKind{byPeerPidfd, byPidfdOpen, byConnection} {
		t.Run(best.String(), func(t *testing.T) {
			children := meet(t, 3, best)
			for _, c := range children {
				if got := c.expectLine("connected"); got != best.String() && best != byPeerPidfd {
					t.Fatalf("watches by %s", got)
				} else if best == byPeerPidfd && got != best.String() {
					t.Logf("this kernel has no SO_PEERPIDFD: %s", got)
				}
			}
			killed := children[1]
			for _, r := range []int{0, 2} {
				children[r].tell("await-loss 1")
				children[r].expectLine("waiting")
			}
			start := time.Now()
			if err := killed.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			for _, r := range []int{0, 2} {
				checkLoss(t, children[r].expectLine(""), killed.cmd.Process.Pid, start)
				children[r].tell("lost " + fmt.Sprint(2-r))
				children[r].expectLine("<nil>")
			}
		})
	}
}

func checkLoss(t *testing.T, answer string, pid int, start time.Time) {
	t.Helper()
	fields := strings.SplitN(answer, " ", 3)
	at, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || len(fields) < 3 || fields[1] != "true" {
		t.Fatalf("answer %q", answer)
	}
	if !strings.Contains(fields[2], "rank 1 ") || !strings.Contains(fields[2], fmt.Sprint(pid)) {
		t.Errorf("%q does not name rank 1 and process %d", fields[2], pid)
	}
	if d := time.Unix(0, at).Sub(start); d > 5*time.Second {
		t.Errorf("noticed after %v", d)
	} else {
		t.Logf("noticed %v after the signal was sent", d)
	}
}

// TestLeavingIsNotDying closes one rank's domain while its process lives on.
func TestLeavingIsNotDying(t *testing.T) {
	for _, best := range []livenessKind{byPeerPidfd, byConnection} {
		children := meet(t, 2, best)
		for _, c := range children {
			c.expectLine("connected")
		}
		children[1].tell("close")
		children[1].expectLine("closed")
		time.Sleep(50 * time.Millisecond)
		children[0].tell("lost 1")
		children[0].expectLine("<nil>")
	}
}

func TestDeadBeforeConnectIsNamed(t *testing.T) {
	c := startChild(t, 0, 2, byPeerPidfd, nil)
	theirs, err := hex.DecodeString(c.expectLine("metadata"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := Open(Config{Rank: 1, NumRanks: 2, ControlBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = c.cmd.Process.Kill() })
	within(t, 10*time.Second, func() {
		_, err = l.Connect([][]byte{theirs, l.Metadata()}, time.Minute)
	})
	if err == nil || !strings.Contains(err.Error(), "rank 0: closed the connection") {
		t.Error(err)
	}
}

func TestOtherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacking(t, "root", "only root can start a process of another user")
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	for foreign := range 2 {
		mine := 1 - foreign
		c := startForeign(t, foreign, nobody)
		theirs := c.expectLine("metadata")
		l, err := Open(Config{Rank: mine, NumRanks: 2, ControlBytes: 4096})
		if err != nil {
			t.Fatal(err)
		}
		all := make([][]byte, 2)
		all[mine] = l.Metadata()
		all[foreign], _ = hex.DecodeString(theirs)
		c.tell(hex.EncodeToString(all[0]) + "\n" + hex.EncodeToString(all[1]))
		_, err = l.Connect(all, 500*time.Millisecond)
		if err == nil || !strings.Contains(err.Error(), "user id 65534") {
			t.Errorf("rank %d: %v", mine, err)
		}
	}
}

// TestOverflowUserIsRefused: two ranks in user namespaces that map no user see each other
// under the user id that each has itself. That says nothing.
func TestOverflowUserIsRefused(t *testing.T) {
	apart := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	try := exec.Command("true")
	try.SysProcAttr = apart
	if err := try.Run(); err != nil {
		testenv.Lacking(t, "userns", "no user namespace can be made: "+err.Error())
	}
	children, all := make([]*child, 2), make([]string, 2)
	for r := range children {
		children[r] = startChild(t, r, 2, byPeerPidfd, apart)
		all[r] = children[r].expectLine("metadata")
	}
	for _, c := range children {
		c.tell(strings.Join(all, "\n"))
	}
	within(t, 10*time.Second, func() {
		if got := children[1].expectLine("error"); !strings.Contains(got, "any of them may be its owner") {
			t.Errorf("rank 1: %q", got)
		}
	})
}

// startForeign needs a copy of the test binary that others may execute.
func startForeign(t *testing.T, rank int, attr *syscall.SysProcAttr) *child {
	t.Helper()
	dir, err := os.MkdirTemp("", "moewire-shm-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(dir+"/child", binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	old := os.Args[0]
	os.Args[0] = dir + "/child"
	defer func() { os.Args[0] = old }()
	return startChild(t, rank, 2, byPeerPidfd, attr)
}
