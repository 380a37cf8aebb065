package multihost

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// shortCalls are the calls that may lack something, by what.
var shortCalls = map[syscall.Errno][]string{
	syscall.EMFILE: {"accept4", "socket", "eventfd", "memfd_create", "epoll_create1", "fcntl F_DUPFD_CLOEXEC", "recvmsg"},
	syscall.ENFILE: {"accept4", "socket", "eventfd", "memfd_create", "epoll_create1"},
	syscall.ENOMEM: {"accept4", "socket", "eventfd", "memfd_create", "epoll_create1", "epoll_ctl add", "mmap"},
	syscall.ENOSPC: {"epoll_ctl add", "ftruncate"},
}

const (
	shortDeadline = 250 * time.Millisecond
	// A quiet machine needs less than 100 ms; this one may be busy.
	maxOverrun = time.Second
)

// TestRendezvousEndsInTime: whatever a rendezvous lacks, of ranks that share memory, of
// ranks of two hosts and of both, Connect and Reconnect end by their deadline on
// every rank, leave nothing behind, and a rank that fails for want of something
// says of what, and how much there may be.
func TestRendezvousEndsInTime(t *testing.T) {
	overrun := time.Duration(0)
	for _, hosts := range [][]string{{"a", "a"}, {"a", "b"}, {"a", "a", "b"}} {
		for errno, calls := range shortCalls {
			for _, call := range calls {
				if testing.Short() && len(hosts) == 3 {
					continue
				}
				t.Run(fmt.Sprint(hosts, errno, call), func(t *testing.T) {
					before := openFiles(t)
					for _, meet := range []meetFunc{meetShort, meetAgainShort} {
						overrun = max(overrun, untilMet(t, meet, hosts, call, errno))
					}
					eventually(t, "everything is closed", func() bool { return openFiles(t) <= before })
				})
			}
		}
	}
	t.Logf("at most %v after the deadline", overrun)
}

func openFiles(t *testing.T) int64 { return sys.Stats().OpenFDs }

// meetFunc lets ranks meet while every such call fails. It says by how much the slowest
// was late, and false if the deadline was over before any rank had made the call.
type meetFunc func(t *testing.T, hosts []string, call string, errno syscall.Errno, deadline time.Duration) (overrun time.Duration, met bool)

// untilMet gives a busy machine more time, until the shortage itself decides.
func untilMet(t *testing.T, meet meetFunc, hosts []string, call string, errno syscall.Errno) time.Duration {
	for deadline := shortDeadline; ; deadline *= 4 {
		overrun, met := meet(t, hosts, call, errno, deadline)
		if met {
			return overrun
		}
		require.Less(t, deadline, 20*time.Second, "no rank comes as far as %s", call)
	}
}

// meetShort lets ranks connect.
func meetShort(t *testing.T, hosts []string, call string, errno syscall.Errno, deadline time.Duration) (time.Duration, bool) {
	keys := wire.GenerateKeyring()
	listeners := make([]*Listener, len(hosts))
	for r, h := range hosts {
		var err error
		listeners[r], err = Open(testConfig(keys, r, len(hosts), h))
		require.NoError(t, err)
	}
	domains := make([]*Domain, len(hosts))
	overrun, met := inTime(t, len(hosts), call, errno, deadline, func(all [][]byte, r int) (err error) {
		domains[r], err = listeners[r].Connect(all, deadline)
		return err
	}, metadataOf(listeners))
	for r := range hosts {
		if domains[r] != nil {
			_ = domains[r].Close()
		}
		_ = listeners[r].Close()
	}
	return overrun, met
}

// meetAgainShort lets ranks that are connected meet again.
func meetAgainShort(t *testing.T, hosts []string, call string, errno syscall.Errno, deadline time.Duration) (time.Duration, bool) {
	g := newTroupe(t, hosts, nil)
	defer func() { g.close(); g.domains = nil }()
	listeners := make([]*Listener, len(hosts))
	for r, d := range g.domains {
		var err error
		listeners[r], err = Relist(d, []byte("p"))
		require.NoError(t, err)
	}
	overrun, met := inTime(t, len(hosts), call, errno, deadline, func(all [][]byte, r int) error {
		change, err := listeners[r].Reconnect(all, deadline)
		if err == nil {
			change.Abort()
		}
		return err
	}, metadataOf(listeners))
	for _, l := range listeners {
		_ = l.Close()
	}
	return overrun, met
}

func inTime(t *testing.T, ranks int, call string, errno syscall.Errno, deadline time.Duration, meet func(all [][]byte, r int) error, all [][]byte) (time.Duration, bool) {
	var met atomic.Bool
	stop := sys.InjectFaults(func(name string) error {
		if name == call {
			met.Store(true)
			return errno
		}
		return nil
	})
	defer stop()
	errs, took := make([]error, ranks), make([]time.Duration, ranks)
	var wg sync.WaitGroup
	for r := range ranks {
		wg.Go(func() {
			begin := time.Now()
			errs[r] = meet(all, r)
			took[r] = time.Since(begin)
		})
	}
	wg.Wait()
	for r, d := range took {
		require.LessOrEqual(t, d, deadline+maxOverrun, "rank %d: %v", r, errs[r])
	}
	overrun := max(0, slices.Max(took)-deadline)
	if err := errors.Join(errs...); err != nil {
		if !met.Load() {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return overrun, false
		}
		require.ErrorContains(t, err, call+": "+errno.Error()+", ", "the cause is not named")
		for _, own := range errs {
			if own != nil && errors.Is(own, errno) {
				require.True(t, sys.IsShortage(own), own)
			}
		}
	}
	return overrun, true
}

// TestRendezvousInAStormOfSignals: interrupted calls are made again, and deadlines
// hold.
func TestRendezvousInAStormOfSignals(t *testing.T) {
	stop := storm(t)
	defer stop()
	g := newTroupe(t, []string{"a", "a", "b"}, nil)
	keys := wire.GenerateKeyring()
	for r, hosts := range [][]string{{"a", "a"}, {"a", "b"}} {
		l, err := Open(testConfig(keys, 0, 2, hosts[0]))
		require.NoError(t, err)
		absent, err := Open(testConfig(keys, 1, 2, hosts[1]))
		require.NoError(t, err)
		begin := time.Now()
		_, err = l.Connect([][]byte{l.Metadata(), absent.Metadata()}, shortDeadline)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, r)
		require.LessOrEqual(t, time.Since(begin), shortDeadline+maxOverrun)
		require.NoError(t, absent.Close())
	}
	for r := range g.domains {
		send(t, g.domains[2], r%2, "still")
	}
}

// storm interrupts the calls of this process, thousands of times a second.
func storm(t *testing.T) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGWINCH)
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
			}
			for _, tid := range threads(t) {
				_, _, _ = syscall.Syscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(tid), uintptr(syscall.SIGWINCH))
			}
			time.Sleep(100 * time.Microsecond)
		}
	}()
	return sync.OnceFunc(func() { close(quit); <-done; signal.Stop(ignored) })
}

func threads(t *testing.T) (ids []int) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if id, err := strconv.Atoi(e.Name()); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// TestUnknownHost is an error, not another host.
func TestUnknownHost(t *testing.T) {
	cfg := testConfig(wire.GenerateKeyring(), 0, 1, "")
	stop := sys.InjectFaults(func(call string) error {
		if strings.HasPrefix(call, "open /proc/sys/kernel/random/boot_id") {
			return syscall.EMFILE
		}
		return nil
	})
	defer stop()
	before := openFiles(t)
	_, err := Open(cfg)
	require.ErrorIs(t, err, syscall.EMFILE)
	require.ErrorContains(t, err, "which host this is cannot be told: open /proc/sys/kernel/random/boot_id: too many open files, limit ")
	require.Equal(t, before, openFiles(t))
	stop()
	l, err := Open(cfg)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
