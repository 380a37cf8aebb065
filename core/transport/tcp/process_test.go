package tcp

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// Tests in which a peer must really end: the test binary again, as a process
// of its own. It prints its address and its region, reads the test's address,
// and serves until it is killed.
const childVariable = "MOEWIRE_TEST_TCP_CHILD"

const childBytes = 8 << 20

func TestMain(m *testing.M) {
	if key := os.Getenv(childVariable); key != "" {
		if err := child(key); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(key string) error {
	ring, err := wire.NewKeyring(func() ([]byte, error) { return []byte("1 " + key), nil })
	if err != nil {
		return err
	}
	// The kernel takes what comes until its buffer is full, also for a process
	// that is frozen: a small one of fixed size, for the tests that freeze it.
	tr, err := Open(Config{Listen: loopback, Keyring: ring, SocketBufferBytes: 64 << 10})
	if err != nil {
		return err
	}
	r, err := tr.Register(make([]byte, childBytes), transport.AccessWrite)
	if err != nil {
		return err
	}
	ep, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 4, RecvDepth: 4})
	if err != nil {
		return err
	}
	fmt.Println(hex.EncodeToString(ep.Local()), r.Remote().Key)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return err
	}
	remote, err := hex.DecodeString(strings.TrimSpace(line))
	if err != nil {
		return err
	}
	if err := ep.Connect(remote, time.Now().Add(soon)); err != nil {
		return err
	}
	select {} // the standby does the rest
}

// apart is an endpoint that is connected to another process.
type apart struct {
	t      *testing.T
	tr     *Transport
	ep     transport.Endpoint
	mem    transport.Region
	remote transport.RemoteRegion
	child  *exec.Cmd
	done   []transport.Completion
}

func newApart(t *testing.T, config Config) *apart {
	key := strings.Repeat("0123456789abcdef", 4)
	ring, err := wire.NewKeyring(func() ([]byte, error) { return []byte("1 " + key), nil })
	require.NoError(t, err)
	config.Keyring = ring
	x := &apart{t: t, tr: openOne(t, config), child: exec.Command(os.Args[0], "-test.run=^$")}
	x.child.Env = append(os.Environ(), childVariable+"="+key)
	in, err := x.child.StdinPipe()
	require.NoError(t, err)
	out, err := x.child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, x.child.Start())
	t.Cleanup(func() { _ = x.child.Process.Kill(); _ = x.child.Wait() })
	var local string
	_, err = fmt.Fscan(out, &local, &x.remote.Key)
	require.NoError(t, err)
	remote, err := hex.DecodeString(local)
	require.NoError(t, err)
	x.ep, err = x.tr.NewEndpoint(transport.EndpointSpec{SendDepth: 4, RecvDepth: 4})
	require.NoError(t, err)
	x.mem, err = x.tr.Register(make([]byte, childBytes), 0)
	require.NoError(t, err)
	_, err = fmt.Fprintf(in, "%x\n", x.ep.Local())
	require.NoError(t, err)
	require.NoError(t, x.ep.Connect(remote, time.Now().Add(soon)))
	return x
}

func (x *apart) write(id uint64) {
	n, err := x.ep.PostSend([]transport.SendRequest{{ID: id, Op: transport.OpWrite, Local: whole(x.mem), Remote: x.remote}})
	require.NoError(x.t, err)
	require.Equal(x.t, 1, n)
}

func (x *apart) await(n int) []transport.Completion {
	var list [16]transport.Completion
	for end := time.Now().Add(soon); len(x.done) < n; {
		require.True(x.t, time.Now().Before(end), "have %+v", x.done)
		require.NoError(x.t, x.tr.Wait(100*time.Millisecond))
		got, err := x.tr.Poll(list[:])
		require.NoError(x.t, err)
		x.done = append(x.done, list[:got]...)
	}
	return x.done
}

// mustHaveFailed checks that the oldest request had no answer, that all others
// were flushed, and that it was reported.
func (x *apart) mustHaveFailed(pending uint64) {
	done := x.await(6)
	require.Len(x.t, done, 6)
	for _, c := range done[1:] {
		want := transport.StatusFlushed
		if c.ID == pending {
			want = transport.StatusUnreachable
		}
		require.Equal(x.t, want, c.Status, "%+v", c)
	}
	require.Equal(x.t, transport.StateError, x.ep.State())
	var events [4]transport.Event
	require.Equal(x.t, 1, x.tr.PollEvents(events[:]))
	require.Equal(x.t, transport.EventEndpointFailed, events[0].Kind)
	require.Equal(x.t, x.ep.ID(), events[0].Endpoint)
	require.NoError(x.t, x.ep.Close())
	require.NoError(x.t, x.mem.Close())
	require.NoError(x.t, x.tr.Close())
}

// freeze returns once all threads of the process have stopped.
func (x *apart) freeze() {
	require.NoError(x.t, x.child.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(x.child.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(x.t, err)
	require.True(x.t, status.Stopped())
}

// stopped posts a request that ends and others that do not, because the peer
// process is frozen.
func stopped(t *testing.T, config Config) *apart {
	x := newApart(t, config)
	n, err := x.ep.PostRecv([]transport.RecvRequest{{ID: 10}, {ID: 11}})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	x.write(1)
	require.Equal(t, transport.StatusOK, x.await(1)[0].Status)
	x.freeze()
	for id := range uint64(3) {
		x.write(2 + id)
	}
	return x
}

// TestPeerIsKilled: the end of the process ends everything outstanding.
func TestPeerIsKilled(t *testing.T) {
	for _, config := range []Config{{}, {ZeroCopy: ZeroCopyOn}} {
		x := stopped(t, config)
		require.NoError(t, x.child.Process.Kill())
		x.mustHaveFailed(2)
	}
}

// TestPeerIsUnresponsive: a frozen process that takes nothing is given up after
// UnresponsiveTimeout.
func TestPeerIsUnresponsive(t *testing.T) {
	for _, how := range []ZeroCopy{ZeroCopyAuto, ZeroCopyOn} {
		x := stopped(t, Config{UnresponsiveTimeout: time.Second, SocketBufferBytes: 64 << 10, ZeroCopy: how})
		x.mustHaveFailed(2)
	}
}
