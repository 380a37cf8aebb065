// These tests (machine_*_test.go) need several processes, root, or the
// kernel's own account of what is open. The virtual machine of tests/rdma has
// all of it; elsewhere they are skipped.

package verbs_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
)

// testTimeout bounds every wait for something that must happen.
const testTimeout = 60 * time.Second

// The devices that the machine has, each on a network of its own.
const (
	device      = "rxe0"
	otherDevice = "rxe1"
	otherNet    = "eth1" // the interface under otherDevice
)

const both = transport.AccessRead | transport.AccessWrite

// needMachine skips the test on anything but that machine.
func needMachine(t testing.TB) {
	t.Helper()
	for _, d := range []string{device, otherDevice} {
		if _, err := os.Stat("/sys/class/infiniband/" + d); err != nil {
			testenv.Lacking(t, "verbs", "no soft-RoCE device "+d+": run in the machine of tests/rdma")
		}
	}
}

func open(t testing.TB, config verbs.Config) *verbs.Transport {
	t.Helper()
	needMachine(t)
	if config.Device == "" {
		config.Device = device
	}
	if config.NumEndpoints == 0 {
		config.NumEndpoints = 64
	}
	tr, err := verbs.New(config)
	require.NoError(t, err)
	return tr
}

// register registers memory outside the Go heap, until the test ends.
func register(t testing.TB, tr transport.Transport, n int64) transport.Region {
	t.Helper()
	m, err := sys.MapAnonymous(n)
	require.NoError(t, err)
	r, err := tr.Register(m.Bytes(), both)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		require.NoError(t, m.Unmap())
	})
	return r
}

var spec = transport.EndpointSpec{SendDepth: 16, RecvDepth: 16}

func newEndpoint(t testing.TB, tr transport.Transport) transport.Endpoint {
	t.Helper()
	e, err := tr.NewEndpoint(spec)
	require.NoError(t, err)
	return e
}

// finish retires endpoints, takes what they have outstanding and closes them.
func finish(t testing.TB, tr transport.Transport, endpoints ...transport.Endpoint) {
	t.Helper()
	var done [32]transport.Completion
	for _, e := range endpoints {
		require.NoError(t, e.Retire())
	}
	for _, e := range endpoints {
		eventually(t, "the endpoint has nothing outstanding", func() bool {
			_, err := tr.Poll(done[:])
			require.NoError(t, err)
			err = e.Close()
			require.True(t, err == nil || errors.Is(err, transport.ErrBusy), "%v", err)
			return err == nil
		})
	}
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(testTimeout); !is(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(until), "not within %v: %s", testTimeout, what)
	}
}

// numQueuePairs is the kernel's count of the queue pairs of all programs. It
// names the thread that made each, so that one process's cannot be told apart.
func numQueuePairs(t testing.TB) int {
	t.Helper()
	text, err := exec.Command("rdma", "-j", "resource", "show", "qp").Output()
	require.NoError(t, err)
	var all []struct {
		PID int `json:"pid"` // the kernel's own have none
	}
	require.NoError(t, json.Unmarshal(text, &all), "%s", text)
	n := 0
	for _, q := range all {
		if q.PID != 0 {
			n++
		}
	}
	return n
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	text, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s", text)
}
