package cudaipc

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
)

// holderVariable says to the test binary that it is a process that holds memory,
// and at which listener.
const holderVariable = "MOEWIRE_TEST_CUDAIPC_LISTENER"

// newListener is a listener of memory that has an IPC handle.
func newListener(t *testing.T) (*Offer, *memDesc) {
	o := &Offer{memDesc: memDesc{ways: byIPC, nonce: [nonceBytes]byte{1, 2}}}
	o.memDesc.socket = freshName()
	var err error
	o.listener, err = openListener(o.memDesc.socket, o.memDesc.nonce, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	return o, &o.memDesc
}

func freshName() string { return "moewire-test-" + rand.Text() }

func (o *Offer) becomes(t *testing.T, pids ...int) {
	t.Helper()
	require.Eventually(t, func() bool { return fmt.Sprint(o.Holders()) == fmt.Sprint(pids) }, time.Minute, time.Millisecond)
}

// enter is one opening of the memory.
func enter(t *testing.T, c *memDesc) *View {
	conn, fd, err := visit(c, soon())
	require.NoError(t, err)
	require.Nil(t, fd)
	return &View{held: conn}
}

func (v *View) leave() { leave(v.held) }

// TestHoldersAreCountedByOpening: a process that has the memory open twice holds it until
// it has closed both, also when no process is let in any more.
func TestHoldersAreCountedByOpening(t *testing.T) {
	o, c := newListener(t)
	require.Empty(t, o.Holders())
	self := os.Getpid()
	first, second := enter(t, c), enter(t, c)
	require.Equal(t, []int{self, self}, o.Holders(), "it is known before the process hears that it may")
	first.leave()
	o.becomes(t, self)
	require.NoError(t, o.Close())
	_, _, err := visit(c, soon())
	require.ErrorIs(t, err, sys.ErrNoListener)
	require.Equal(t, []int{self}, o.Holders())
	second.leave()
	o.becomes(t)
}

// TestHoldersEndWithTheirProcess: one that is killed holds nothing any more; a process
// that comes after it is another one.
func TestHoldersEndWithTheirProcess(t *testing.T) {
	o, c := newListener(t)
	first, second := startHolder(t, c), startHolder(t, c)
	require.ElementsMatch(t, []int{first.Process.Pid, second.Process.Pid}, o.Holders())
	require.NoError(t, first.Process.Kill())
	o.becomes(t, second.Process.Pid)
	third := startHolder(t, c)
	require.NoError(t, o.Close())
	require.NoError(t, second.Process.Kill())
	o.becomes(t, third.Process.Pid)
	require.NoError(t, third.Process.Kill())
	o.becomes(t)
}

// TestConnectionIsNotTheProcess: memory is open as long as its process lives that
// has not sent a shutdown notice, whatever became of the connection.
func TestConnectionIsNotTheProcess(t *testing.T) {
	pid, err := sys.OpenPidfd(os.Getpid())
	if err != nil {
		testenv.Lacking(t, "pidfd", "this kernel has no pidfds: the end of a connection stands for the process's")
	}
	sys.CloseAll(pid)
	o, c := newListener(t)
	lost, other := enter(t, c), enter(t, c)
	sys.CloseAll(lost.held)
	other.leave()
	o.becomes(t, os.Getpid())
	require.Equal(t, []int{os.Getpid()}, o.Holders())
}

// TestLateAnswer: a process that has gone before it heard that it may open the
// memory holds nothing.
func TestLateAnswer(t *testing.T) {
	c := &memDesc{ways: byIPC, socket: freshName()}
	d := listenerOf(c.nonce, nil)
	var err error
	d.socket, err = sys.ListenAbstract(c.socket, 1)
	require.NoError(t, err)
	defer sys.CloseAll(d.socket)
	stop := make(chan struct{})
	close(stop)
	_, _, err = visit(c, Wait{Until: time.Now().Add(time.Hour), Stop: stop})
	require.ErrorIs(t, err, ErrStopped)
	d.admit()
	pending := d.pending.All()
	require.Len(t, pending, 1)
	d.answer(pending, []int{2})
	require.Empty(t, d.pending.All())
	require.Empty(t, d.pids())
}

// TestUselessAnswer: nor does one that was let in, and finds that it cannot open
// the memory.
func TestUselessAnswer(t *testing.T) {
	o, c := newListener(t)
	other := *c
	other.ways = byFD
	_, _, err := visit(&other, soon())
	require.ErrorContains(t, err, "did not give the memory")
	o.becomes(t)
}

// startHolder starts a process that connects to a listener and stays.
func startHolder(t *testing.T, c *memDesc) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestHolderChild$", "-test.v")
	cmd.Env = append(os.Environ(), holderVariable+"="+c.socket+" "+hex.EncodeToString(c.nonce[:]))
	stdin, err := cmd.StdinPipe() // its end is the child's
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	for s := bufio.NewScanner(out); s.Scan(); {
		if s.Text() == "> holds" {
			return cmd
		}
	}
	require.Fail(t, "the process ended at the listener")
	return nil
}

// TestHolderChild is a process of the tests above; it is not a test of itself.
func TestHolderChild(t *testing.T) {
	socket, nonce, found := strings.Cut(os.Getenv(holderVariable), " ")
	if !found {
		t.Skip("it is for the tests of processes")
	}
	c := &memDesc{ways: byIPC, socket: socket}
	_, err := hex.Decode(c.nonce[:], []byte(nonce))
	require.NoError(t, err)
	v := enter(t, c)
	fmt.Println("> holds")
	_, _ = io.Copy(io.Discard, os.Stdin)
	sys.CloseAll(v.held)
}

// TestStoppedWait: a wait for a rank that offers nothing ends when it is told to.
func TestStoppedWait(t *testing.T) {
	p := newPair(t)
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := Map(p.doms[0], p.dev, 1, memBytes, Wait{Until: time.Now().Add(time.Hour), Stop: stop})
		ended <- err
	}()
	close(stop)
	require.ErrorIs(t, <-ended, ErrStopped)
}

// TestStoppedAtTheListener: the same for a holder with a process that does not answer.
func TestStoppedAtTheListener(t *testing.T) {
	socket := freshName()
	listener, err := sys.ListenAbstract(socket, 1)
	require.NoError(t, err)
	defer sys.CloseAll(listener)
	stop := make(chan struct{})
	close(stop)
	_, _, err = visit(&memDesc{ways: byIPC, socket: socket}, Wait{Until: time.Now().Add(time.Hour), Stop: stop})
	require.ErrorIs(t, err, ErrStopped)
}
