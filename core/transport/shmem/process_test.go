package shmem

import (
	"bufio"
	"bytes"
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
	"github.com/moewire/moewire/core/transport"
)

// Tests in which a peer is a process of its own: the test binary again. It
// prints its address and region, reads the test's, connects, and does what the
// variable says until it is killed.
const childVariable = "MOEWIRE_TEST_MAPPED_CHILD"

const childBytes = 8 << 20

func TestMain(m *testing.M) {
	if what := os.Getenv(childVariable); what != "" {
		if err := runChild(what); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// introduction is a line with all that the other process needs.
func introduction(ep transport.Endpoint, r transport.Region) string {
	at := r.Remote()
	return fmt.Sprintf("%s %d %d %d\n", hex.EncodeToString(ep.Local()), at.Addr, at.SizeBytes, at.Key)
}

func readIntroduction(in io.Reader) (address []byte, at transport.RemoteRegion, err error) {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return nil, at, err
	}
	var text string
	if _, err = fmt.Sscan(line, &text, &at.Addr, &at.SizeBytes, &at.Key); err != nil {
		return nil, at, fmt.Errorf("%w: %q", err, line)
	}
	address, err = hex.DecodeString(text)
	return address, at, err
}

func runChild(what string) error {
	tr, err := Open(Config{})
	if err != nil {
		return err
	}
	m, err := NewMemory(childBytes)
	if err != nil {
		return err
	}
	r, err := tr.Register(m.Bytes(), transport.AccessRead|transport.AccessWrite)
	if err != nil {
		return err
	}
	ep, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 4, RecvDepth: 4})
	if err != nil {
		return err
	}
	fmt.Print(introduction(ep, r))
	address, at, err := readIntroduction(os.Stdin)
	if err != nil {
		return err
	}
	if err := ep.Connect(address, time.Now().Add(soon)); err != nil {
		return err
	}
	switch what {
	case "echo":
		return echo(tr, ep, r)
	case "write":
		return flood(tr, ep, transport.SendRequest{Op: transport.OpWrite, Local: []transport.Piece{{Region: r, Bytes: childBytes}}, Remote: at})
	case "send":
		return flood(tr, ep, transport.SendRequest{Op: transport.OpSend, Local: []transport.Piece{{Region: r, Bytes: childBytes}}})
	}
	select {} // idle
}

// echo sends back what it receives, every byte one more.
func echo(tr *Transport, ep transport.Endpoint, r transport.Region) error {
	whole := []transport.Piece{{Region: r, Bytes: childBytes}}
	var done [4]transport.Completion
	if _, err := ep.PostRecv([]transport.RecvRequest{{ID: 1, Local: whole}}); err != nil {
		return err
	}
	for {
		if err := tr.Wait(soon); err != nil {
			return err
		}
		n, err := tr.Poll(done[:])
		if err != nil {
			return err
		}
		for _, c := range done[:n] {
			if c.Status != transport.StatusOK {
				return fmt.Errorf("%+v", c)
			}
			if c.Op == transport.OpSend {
				_, err = ep.PostRecv([]transport.RecvRequest{{ID: 1, Local: whole}})
			} else {
				mem := r.Bytes()[:c.NumBytes]
				for i := range mem {
					mem[i]++
				}
				_, err = ep.PostSend([]transport.SendRequest{{ID: 2, Op: transport.OpSend, Local: []transport.Piece{{Region: r, Bytes: len(mem)}}}})
			}
			if err != nil {
				return err
			}
		}
	}
}

// flood does one thing for ever.
func flood(tr *Transport, ep transport.Endpoint, q transport.SendRequest) error {
	mem := q.Local[0].Region.Bytes()
	var done [4]transport.Completion
	for round := byte(1); ; round++ {
		for i := 0; i < len(mem); i += 4096 {
			mem[i] = round
		}
		if _, err := ep.PostSend([]transport.SendRequest{q}); err != nil {
			return err
		}
		for n := 0; n == 0; {
			_ = tr.Wait(time.Millisecond)
			var err error
			if n, err = tr.Poll(done[:]); err != nil || n > 0 && done[0].Status != transport.StatusOK {
				return fmt.Errorf("%w, %+v", err, done)
			}
		}
	}
}

// apart is a connection to another process.
type apart struct {
	t      *testing.T
	tr     *Transport
	ep     *Endpoint
	memory *Memory
	region transport.Region
	remote transport.RemoteRegion
	child  *exec.Cmd
	before sys.Counts
	done   []transport.Completion
}

func newApart(t *testing.T, what string) *apart {
	a := &apart{t: t, before: sys.Stats(), done: make([]transport.Completion, 16)}
	var err error
	a.tr, err = Open(Config{})
	require.NoError(t, err)
	a.memory, err = NewMemory(2 * childBytes)
	require.NoError(t, err)
	a.region, err = a.tr.Register(a.memory.Bytes(), transport.AccessWrite|transport.AccessRead)
	require.NoError(t, err)
	ep, err := a.tr.NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 8})
	require.NoError(t, err)
	a.ep = ep.(*Endpoint)
	a.start(what)
	return a
}

func (a *apart) start(what string) {
	a.child = exec.Command(os.Args[0])
	a.child.Env = append(os.Environ(), childVariable+"="+what)
	a.child.Stderr = os.Stderr
	in, err := a.child.StdinPipe()
	require.NoError(a.t, err)
	out, err := a.child.StdoutPipe()
	require.NoError(a.t, err)
	require.NoError(a.t, a.child.Start())
	a.t.Cleanup(func() {
		_ = a.child.Process.Kill()
		_ = a.child.Wait()
	})
	address, at, err := readIntroduction(out)
	require.NoError(a.t, err)
	a.remote = at
	_, err = io.WriteString(in, introduction(a.ep, a.region))
	require.NoError(a.t, err)
	require.NoError(a.t, a.ep.Connect(address, time.Now().Add(soon)))
}

// next waits for one completion.
func (a *apart) next() transport.Completion {
	for end := time.Now().Add(soon); time.Now().Before(end); {
		n, err := a.tr.Poll(a.done[:1])
		require.NoError(a.t, err)
		if n == 1 {
			return a.done[0]
		}
		require.NoError(a.t, a.tr.Wait(time.Until(end)))
	}
	a.t.Fatal("no completion")
	panic("not reached")
}

// end closes everything, and finds nothing left.
func (a *apart) end() {
	require.NoError(a.t, a.ep.Retire())
	require.Eventually(a.t, func() bool {
		_, err := a.tr.Poll(a.done)
		return err == nil && a.ep.Close() == nil
	}, soon, time.Millisecond)
	require.NoError(a.t, a.region.Close())
	require.NoError(a.t, a.tr.Close())
	require.NoError(a.t, a.memory.Close())
	require.Equal(a.t, a.before, sys.Stats())
}

func (a *apart) kill() {
	require.NoError(a.t, a.child.Process.Kill())
}

func TestProcessesExchange(t *testing.T) {
	a := newApart(t, "echo")
	mem := a.memory.Bytes()
	for _, n := range []int{0, 1, 4097, 300 << 10, childBytes} {
		for i := range n {
			mem[i] = byte(i * 7 % 251)
		}
		want := bytes.Clone(mem[:n])
		for i := range want {
			want[i]++
		}
		_, err := a.ep.PostRecv([]transport.RecvRequest{{ID: 1, Local: []transport.Piece{{Region: a.region, Off: childBytes, Bytes: n}}}})
		require.NoError(t, err)
		_, err = a.ep.PostSend([]transport.SendRequest{{ID: 2, Op: transport.OpSend, Local: []transport.Piece{{Region: a.region, Bytes: n}}}})
		require.NoError(t, err)
		for range 2 {
			c := a.next()
			require.Equal(t, transport.StatusOK, c.Status)
			require.Equal(t, n, int(c.NumBytes))
		}
		require.True(t, bytes.Equal(want, mem[childBytes:childBytes+n]), "%d bytes", n)
	}
	a.kill()
	a.end()
}

// TestKilled: whatever a process was doing when it is killed, what was outstanding
// ends, no memory changes afterwards, and everything can be closed.
func TestKilled(t *testing.T) {
	for _, what := range []string{"idle", "write", "send"} {
		t.Run(what, func(t *testing.T) {
			for range 5 {
				killOnce(t, what)
			}
		})
	}
}

func killOnce(t *testing.T, what string) {
	a := newApart(t, what)
	mem := a.memory.Bytes()
	piece := []transport.Piece{{Region: a.region, Bytes: childBytes}}
	_, err := a.ep.PostRecv([]transport.RecvRequest{{ID: 1, Local: piece}, {ID: 2, Local: piece}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return what == "idle" || mem[childBytes/2] != 0 }, soon, 10*time.Microsecond)
	a.kill()
	_, err = a.ep.PostSend([]transport.SendRequest{{ID: 3, Op: transport.OpSend, Local: piece}})
	require.NoError(t, err)
	ended := map[uint64]transport.Completion{}
	for len(ended) < 3 {
		c := a.next()
		require.NotContains(t, ended, c.ID)
		ended[c.ID] = c
	}
	require.NotEqual(t, transport.StatusOK, ended[3].Status)
	var events [2]transport.Event
	require.Equal(t, 1, a.tr.PollEvents(events[:]))
	require.Equal(t, a.ep.ID(), events[0].Endpoint)
	require.NotEmpty(t, strings.TrimSpace(events[0].Detail))
	require.NoError(t, a.region.Close())
	was := bytes.Clone(mem)
	time.Sleep(2 * time.Millisecond)
	require.True(t, bytes.Equal(was, mem), "memory changes after the region's end")
	a.end()
}
