package shm

import (
	"errors"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// sleeper is a process that does nothing until it is killed.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reap(cmd) })
	return cmd
}

func reap(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// opens is how acquire opens a process that may have another number in truth.
func opens(cmd *exec.Cmd) func() (*sys.FD, livenessKind, error) {
	return func() (*sys.FD, livenessKind, error) {
		fd, err := sys.OpenPidfd(cmd.Process.Pid)
		return fd, byPidfdOpen, err
	}
}

func newTable() *processTable { return &processTable{shared: map[processKey]*process{}} }

// follower counts what it is told.
type follower struct {
	contact
	ends, failures atomic.Int32
}

func (f *follower) report(failure error) {
	if failure != nil {
		f.failures.Add(1)
	} else {
		f.ends.Add(1)
	}
}

func (f *follower) await(t *testing.T) {
	t.Helper()
	for start := time.Now(); f.ends.Load()+f.failures.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("a follower was not told")
		}
	}
}

// TestNumberOfAnotherProcess: a number that was used again is another process, whether the
// end of the first one was noticed before or not. Those of the first are not told of the
// second's end, nor the other way round.
func TestNumberOfAnotherProcess(t *testing.T) {
	for _, noticed := range []bool{true, false} {
		table, first, second := newTable(), sleeper(t), sleeper(t)
		const number = 1 << 20
		before := sys.Stats().OpenFDs
		var f, g follower
		p := must(table.acquire(number, opens(first)))
		if q := must(table.acquire(number, opens(second))); q != p {
			t.Fatal("a process that lives is not shared")
		}
		table.release(p)
		if noticed {
			if err := table.follow(p, &f.contact, f.report); err != nil {
				t.Fatal(err)
			}
		}
		reap(first)
		if noticed {
			f.await(t)
		}
		q := must(table.acquire(number, opens(second)))
		if q == p {
			t.Fatal("the number's second process is taken for the first")
		}
		if err := table.follow(q, &g.contact, g.report); err != nil {
			t.Fatal(err)
		}
		if !noticed { // the first is followed only now
			if err := table.follow(p, &f.contact, f.report); err != nil {
				t.Fatal(err)
			}
			f.await(t)
		}
		table.release(p)
		if g.ends.Load() != 0 || table.shared[processKey{pid: number}] != q {
			t.Error("the second process has gone with the first")
		}
		reap(second)
		g.await(t)
		table.release(q)
		if f.ends.Load() != 1 || g.ends.Load() != 1 || len(table.shared) != 0 || sys.Stats().OpenFDs != before {
			t.Errorf("told %d and %d times, %d processes left", f.ends.Load(), g.ends.Load(), len(table.shared))
		}
	}
}

// TestLateFollowerGetsTheEnd of an end that was reported before it came.
func TestLateFollowerGetsTheEnd(t *testing.T) {
	table, cmd := newTable(), sleeper(t)
	p := must(table.acquire(7, opens(cmd)))
	defer table.release(p)
	var early, second follower
	if err := table.follow(p, &early.contact, early.report); err != nil {
		t.Fatal(err)
	}
	reap(cmd)
	early.await(t)
	if err := table.follow(p, &second.contact, second.report); err != nil || second.ends.Load() != 1 {
		t.Errorf("told %d times, %v", second.ends.Load(), err)
	}
	p.unfollow(&second.contact)
}

// TestWatcherFailureReachesAll: silence would be taken for life. A later follower cannot
// be watched, and a later contact does not share what is not watched.
func TestWatcherFailureReachesAll(t *testing.T) {
	table, cmd := newTable(), sleeper(t)
	p := must(table.acquire(cmd.Process.Pid, opens(cmd)))
	var one, two, second follower
	for _, f := range []*follower{&one, &two} {
		if err := table.follow(p, &f.contact, f.report); err != nil {
			t.Fatal(err)
		}
	}
	p.report(errWatcher)
	if one.failures.Load() != 1 || two.failures.Load() != 1 {
		t.Errorf("told %d and %d times", one.failures.Load(), two.failures.Load())
	}
	if err := table.follow(p, &second.contact, second.report); !errors.Is(err, errWatcher) || second.failures.Load() != 0 {
		t.Errorf("a late follower: %v, told %d times", err, second.failures.Load())
	}
	q := must(table.acquire(cmd.Process.Pid, opens(cmd)))
	if q == p {
		t.Error("a process that is not watched is shared")
	}
	table.release(q)
	table.release(p)
}

// TestFollowFails where the watcher has no place: nothing stays, and it may work later.
func TestFollowFails(t *testing.T) {
	table, cmd := newTable(), sleeper(t)
	p := must(table.acquire(cmd.Process.Pid, opens(cmd)))
	var f follower
	for _, call := range []string{"epoll_create1", "eventfd", "epoll_ctl add"} {
		stop := sys.FailCall(call, syscall.ENOSPC)
		err := table.follow(p, &f.contact, f.report)
		stop()
		if !errors.Is(err, syscall.ENOSPC) || len(p.followers) != 0 || p.token != 0 || processWatcher.run != nil {
			t.Errorf("%s: %v, %d followers, token %d", call, err, len(p.followers), p.token)
		}
	}
	if err := table.follow(p, &f.contact, f.report); err != nil {
		t.Fatal(err)
	}
	reap(cmd)
	f.await(t)
	table.release(p)
}

// TestContactsComeAndGoWhileTheProcessDies: each that stays is told once, one that goes not
// after it has gone.
func TestContactsComeAndGoWhileTheProcessDies(t *testing.T) {
	before := sys.Stats().OpenFDs
	for round := range 20 {
		table, cmd := newTable(), sleeper(t)
		stays := must(table.acquire(cmd.Process.Pid, opens(cmd)))
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for {
					select {
					case <-stop:
						return
					default:
						comeAndGo(t, table, cmd)
					}
				}
			}()
		}
		var f follower
		if err := table.follow(stays, &f.contact, f.report); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Duration(round%4) * time.Millisecond)
		_ = cmd.Process.Kill() // not reaped yet: the number stays its own
		f.await(t)
		close(stop)
		wg.Wait()
		table.release(stays)
		if f.ends.Load() != 1 || len(table.shared) != 0 {
			t.Errorf("told %d times, %d processes left", f.ends.Load(), len(table.shared))
		}
		_ = cmd.Wait()
	}
	if got := sys.Stats().OpenFDs; got != before {
		t.Errorf("%d descriptors, before %d", got, before)
	}
}

func comeAndGo(t *testing.T, table *processTable, cmd *exec.Cmd) {
	p, err := table.acquire(cmd.Process.Pid, opens(cmd))
	if err != nil {
		t.Error(err)
		return
	}
	var f follower
	if err := table.follow(p, &f.contact, f.report); err != nil {
		t.Error(err)
	}
	p.unfollow(&f.contact)
	ends := f.ends.Load()
	table.release(p)
	if ends > 1 || f.ends.Load() != ends || f.failures.Load() != 0 {
		t.Errorf("told %d times, and %d after it had gone", ends, f.ends.Load()-ends)
	}
}
