package shm

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
)

// watchEnd polls until a process is dying and until it is lost, and logs
// both times.
func watchEnd(t *testing.T, p domain.Process, start time.Time) (dying time.Duration) {
	t.Helper()
	for p.Lost() == nil && time.Since(start) < 10*time.Second {
		if dying == 0 && p.Dying() {
			dying = time.Since(start)
		}
		time.Sleep(20 * time.Microsecond)
	}
	lost := time.Since(start)
	if err := p.Lost(); !errors.Is(err, domain.ErrExited) || !p.Dying() {
		t.Errorf("lost: %v, dying: %v", err, p.Dying())
	}
	if !p.(*member).marked() {
		t.Error("the kernel did not mark the holder's word")
	}
	t.Logf("dying after %v (0: not before it was lost), lost after %v", dying, lost)
	return dying
}

// marked is Dying without Lost.
func (m *member) marked() bool {
	defer m.leave()
	return m.enter() && m.holder().Load() == 0x40000000
}

func awaitHeld(t *testing.T, p domain.Process) {
	t.Helper()
	for start := time.Now(); p.(*member).holder().Load() == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("no thread holds the peer's word")
		}
	}
}

// heldChild is a child with a watcher that holds its word, once it has done as told.
func heldChild(t *testing.T, order, answer string) (domain.Domain, *child) {
	t.Helper()
	d, c := joinChild(t)
	t.Cleanup(func() { _ = d.Close() })
	awaitHeld(t, d.Process(1))
	c.tell(order)
	c.expectLine(answer)
	return d, c
}

func killAndWatch(t *testing.T, c *child, p domain.Process) (dying time.Duration) {
	t.Helper()
	start := time.Now()
	_ = c.cmd.Process.Kill()
	return watchEnd(t, p, start)
}

func TestLargeProcessIsSeenDying(t *testing.T) {
	d, c := joinChild(t)
	defer d.Close()
	c.tell("fill 512")
	c.expectLine("filled")
	p := d.Process(1)
	if p.PID() != c.cmd.Process.Pid || p.Dying() || p.Lost() != nil {
		t.Errorf("process %d: dying %v, lost %v", p.PID(), p.Dying(), p.Lost())
	}
	if dying := killAndWatch(t, c, p); dying > 2*time.Second {
		t.Errorf("dying after %v", dying)
	}
}

func TestExitIsSeenDying(t *testing.T) {
	d, c := joinChild(t)
	defer d.Close()
	start := time.Now()
	c.tell("exit") // without Close
	watchEnd(t, d.Process(1), start)
}

func TestCleanCloseIsNeverDying(t *testing.T) {
	d, _ := heldChild(t, "close", "closed")
	for start := time.Now(); time.Since(start) < 100*time.Millisecond; time.Sleep(time.Millisecond) {
		if d.Process(1).Dying() {
			t.Fatal("a process that lives is dying")
		}
	}
	if got := d.Process(1).(*member).holder().Load(); got != 0 {
		t.Errorf("the holder's word is %#x after Close", got)
	}
}

// TestFailedWatcherIsNotDying also lets the thread of the watcher live on.
func TestFailedWatcherIsNotDying(t *testing.T) {
	d, _ := heldChild(t, "crash-watcher", "crashed")
	time.Sleep(50 * time.Millisecond)
	if p := d.Process(1); p.Dying() || p.(*member).holder().Load() != 0 {
		t.Errorf("dying %v, word %#x", p.Dying(), p.(*member).holder().Load())
	}
}

// TestOneOfTwoDomainsIsClosed unlinks one entry before the kernel looks.
func TestOneOfTwoDomainsIsClosed(t *testing.T) {
	for _, closed := range []string{"older", "newer"} {
		t.Run(closed, func(t *testing.T) {
			first, c := joinChild(t)
			defer first.Close()
			c.tell("join")
			second := c.join(t)
			defer second.Close()
			open, shut := first, second
			if closed == "older" {
				open, shut = second, first
				c.tell("swap")
			}
			awaitHeld(t, shut.Process(1))
			c.tell("close")
			c.expectLine("closed")
			killAndWatch(t, c, open.Process(1))
			if shut.Process(1).(*member).marked() {
				t.Error("the closed domain's word is marked")
			}
		})
	}
}

func TestGrandchildHoldsNothing(t *testing.T) {
	d, c := heldChild(t, "sleep 3", "started")
	if d.Process(1).Dying() {
		t.Error("a process that has started another is dying")
	}
	killAndWatch(t, c, d.Process(1))
}

// TestExecIsDying: the process lives on and is no rank any more.
func TestExecIsDying(t *testing.T) {
	d, _ := heldChild(t, "exec 20", "executing")
	p, start := d.Process(1), time.Now()
	for !p.Dying() && time.Since(start) < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	if !p.Dying() || p.Lost() != nil {
		t.Errorf("after exec: dying %v, lost %v", p.Dying(), p.Lost())
	}
	if err := syscall.Kill(p.PID(), 0); err != nil {
		t.Errorf("the process has ended: %v", err)
	}
}

func BenchmarkDying(b *testing.B) {
	listeners, all := openAll(b, 2, 4096)
	domains, _ := connectAll(listeners, all, time.Minute)
	defer domains[0].Close()
	defer domains[1].Close()
	p := domains[0].Process(1)
	for b.Loop() {
		p.Dying()
	}
}
