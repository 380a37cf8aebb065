//go:build linux

package cpu_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/internal/sys"
)

// TestSizingIsTriedAgain: a first dispatch that finds no memory for any part of the
// buffer changes nothing. The next one makes the buffer, and the operations are those
// of a buffer that had memory at once.
func TestSizingIsTriedAgain(t *testing.T) {
	for carrier, hosts := range carriersOfHosts {
		t.Run(carrier, func(t *testing.T) {
			for most := 0; !sizedWith(t, hosts, most); most++ {
				require.Less(t, most, 100)
			}
		})
	}
}

// sizedWith gives rank 0 memory a number of times, and then none; it reports whether
// that was enough.
func sizedWith(t *testing.T, hosts []string, most int) bool {
	w := newHostsWorldOf(t, hosts, ep.Config{})
	s := shape{ranks: 3, maxTokens: 8, hidden: 64, experts: 3, topk: 2}
	ins := inputs(seeded(t), s, uniform)
	var calls atomic.Int64
	stop := sys.InjectFaults(func(string) error {
		if calls.Add(1) > int64(most) {
			return syscall.ENOMEM
		}
		return nil
	})
	defer stop()
	for range 2 { // also when it fails again
		var ds dispatched
		_, err := w.bufs[0].Dispatch(w.args(0, s, &ins[0], &ds), &ds.res, ep.PhaseDone, 0)
		if errors.Is(err, ep.ErrInProgress) {
			return true
		}
		require.ErrorIs(t, err, syscall.ENOMEM)
		time.Sleep(time.Millisecond) // the pump's turn
	}
	stop()
	for range 3 {
		w.each(func(rank int) error { return w.roundTrip(rank, s, ins) })
	}
	return false
}

const addressSpaceVariable = "MOEWIRE_TEST_ADDRESS_SPACE"

// TestAddressSpaceIsShort: a rank's limit of address space (ulimit -v) has room for its
// own slabs, but not for the outputs of ranks of other hosts. Its first dispatch
// fails with the limit, before anything is sent. Once there is room, the same dispatch
// does what it does on the other ranks.
func TestAddressSpaceIsShort(t *testing.T) {
	if os.Getenv(addressSpaceVariable) == "" {
		child := exec.Command(os.Args[0], "-test.run=^TestAddressSpaceIsShort$", "-test.v")
		child.Env = append(os.Environ(), addressSpaceVariable+"=1")
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: TestAddressSpaceIsShort")
		return
	}
	hosts := carriersOfHosts["tcp"]
	w := newHostsWorldOf(t, hosts, ep.Config{})
	s := shape{ranks: 3, maxTokens: 8, hidden: 512, experts: 3, topk: 2}
	ins := inputs(seeded(t), s, uniform)
	s.maxTokens = 32768
	slab := int64(2 * 3 * 2 * s.maxTokens * s.hidden) // bytes of rows and outputs, for the ranks' one expert each

	was := limitAddressSpace(t, addressSpaceNow(t)+2*slab+slab) // two slots, and of four shadow slabs less than one
	_, err := w.dispatch(0, s, &ins[0])
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_AS, &was))
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "outputs of rank")
	require.ErrorContains(t, err, "RLIMIT_AS of this process: ulimit -v")
	w.each(func(rank int) error { return w.roundTrip(rank, s, ins) })
}

// addressSpaceNow is what this process has, in bytes.
func addressSpaceNow(t *testing.T) int64 {
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.ParseInt(string(bytes.Fields(text)[0]), 10, 64)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}

func limitAddressSpace(t *testing.T, n int64) (was syscall.Rlimit) {
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_AS, &was))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: uint64(n), Max: was.Max}))
	return was
}
