package verbs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
)

// limited puts this process into a group that may have so many objects of the
// device, until the test ends.
func limited(t *testing.T, objects int) {
	t.Helper()
	const root = "/sys/fs/cgroup"
	write := func(file, text string) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write(filepath.Join(root, "cgroup.subtree_control"), "+rdma")
	group := filepath.Join(root, "moewire-"+strconv.Itoa(os.Getpid()))
	require.NoError(t, os.Mkdir(group, 0o700))
	write(filepath.Join(group, "rdma.max"), fmt.Sprintf("%s hca_object=%d", device, objects))
	write(filepath.Join(group, "cgroup.procs"), strconv.Itoa(os.Getpid()))
	t.Cleanup(func() {
		write(filepath.Join(root, "cgroup.procs"), strconv.Itoa(os.Getpid()))
		require.NoError(t, os.Remove(group))
	})
}

// TestES4ShortageOfQueuePairs: at the device's limit nothing has happened, and
// one that is closed makes room for another.
func TestES4ShortageOfQueuePairs(t *testing.T) {
	needMachine(t)
	limited(t, 30)
	tr := open(t, verbs.Config{})
	m, err := sys.MapAnonymous(4096)
	require.NoError(t, err)
	var endpoints []transport.Endpoint
	for {
		e, err := tr.NewEndpoint(spec)
		if err != nil {
			require.ErrorIs(t, err, transport.ErrNoResource)
			require.ErrorContains(t, err, "ibv_create_qp")
			break
		}
		endpoints = append(endpoints, e)
		require.Less(t, len(endpoints), 30)
	}
	require.Greater(t, len(endpoints), 20)
	require.Equal(t, len(endpoints), numQueuePairs(t))
	_, err = tr.Register(m.Bytes(), both)
	require.ErrorIs(t, err, transport.ErrNoResource)

	require.NoError(t, endpoints[0].Close())
	endpoints[0] = newEndpoint(t, tr)
	_, err = tr.NewEndpoint(spec)
	require.ErrorIs(t, err, transport.ErrNoResource)
	finish(t, tr, endpoints...)
	require.Zero(t, numQueuePairs(t))
	require.NoError(t, tr.Close())
	require.NoError(t, m.Unmap())
}

// TestOpenAtTheLimit: a device that has nothing left for us is opened not at
// all, and nothing of the attempt stays.
func TestOpenAtTheLimit(t *testing.T) {
	needMachine(t)
	before := sys.Stats()
	for objects := range 4 {
		t.Run(strconv.Itoa(objects), func(t *testing.T) {
			limited(t, objects)
			tr, err := verbs.New(verbs.Config{Device: device, NumEndpoints: 1})
			if objects < 3 { // a domain, a queue, and the queue pair of the trial
				require.ErrorIs(t, err, transport.ErrNoResource)
				return
			}
			require.NoError(t, err)
			require.NoError(t, tr.Close())
		})
	}
	require.Equal(t, before, sys.Stats())
}

// memlockBytes is the limit of TestShortageOfLockedMemory. Package syscall has
// no name for the resource.
const (
	memlockBytes  = 64 << 10
	rlimitMemlock = 8
)

// TestShortageOfLockedMemory registers more than a plain user may lock: the
// error says what to raise.
func TestShortageOfLockedMemory(t *testing.T) {
	if os.Getenv("MOEWIRE_RDMA_CHILD") == "memlock" {
		lockTooMuch(t)
		return
	}
	needMachine(t)
	nodes, err := filepath.Glob("/dev/infiniband/uverbs*")
	require.NoError(t, err)
	for _, node := range nodes {
		require.NoError(t, os.Chmod(node, 0o666))
	}
	cmd := child(t, "memlock")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
}

// child is this program again, for the calling test only.
func child(t testing.TB, role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), "MOEWIRE_RDMA_CHILD="+role)
	return cmd
}

func lockTooMuch(t *testing.T) {
	limit := syscall.Rlimit{Cur: memlockBytes, Max: memlockBytes}
	require.NoError(t, syscall.Setrlimit(rlimitMemlock, &limit))
	tr := open(t, verbs.Config{})
	m, err := sys.MapAnonymous(1 << 20)
	require.NoError(t, err)
	_, err = tr.Register(m.Bytes(), both)
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.ErrorContains(t, err, "may lock 65536 bytes: raise RLIMIT_MEMLOCK")
	r, err := tr.Register(m.Bytes()[:4096], both) // nothing stayed locked
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.NoError(t, tr.Close())
	require.NoError(t, m.Unmap())
}
