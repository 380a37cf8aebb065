package shm

import (
	"errors"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/moewire/moewire/core/group/domain"
)

func end(t *testing.T, p domain.Process) error {
	t.Helper()
	process, ok := p.(domain.Endable)
	if !ok {
		t.Fatalf("a %T cannot be ended", p)
	}
	return process.End()
}

// TestEnd kills a process that runs, and one that is stopped.
func TestEnd(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		d, c := joinChild(t)
		defer d.Close()
		if stopped {
			_ = c.cmd.Process.Signal(syscall.SIGSTOP)
		}
		p := d.Process(1)
		if err := end(t, p); err != nil {
			t.Fatalf("stopped %v: %v", stopped, err)
		}
		awaitLost(t, p)
		var died *exec.ExitError
		if err := c.cmd.Wait(); !errors.As(err, &died) || died.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("stopped %v: the child has ended with %v", stopped, err)
		}
		if err := end(t, p); err != nil {
			t.Errorf("it has ended already: %v", err)
		}
	}
}

// TestEndOfThisProcess: no process ends itself.
func TestEndOfThisProcess(t *testing.T) {
	domains := newGroup(t, 2, 64)
	defer closeAll(domains)
	for r := range 2 {
		if err := end(t, domains[0].Process(r)); err == nil || !strings.Contains(err.Error(), "in this process") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// TestEndNeedsAPidfd: where the kernel gave none, the error says so.
func TestEndNeedsAPidfd(t *testing.T) {
	defer func(was livenessKind) { bestLiveness = was }(bestLiveness)
	bestLiveness = byConnection
	d, c := joinChild(t)
	defer d.Close()
	if err := end(t, d.Process(1)); !errors.Is(err, errNoPidfd) {
		t.Error(err)
	}
	c.tell("lost 0")
	c.expectLine("<nil>")
}

// TestEndUnwatched: a process that is not known any more is not said to be killed.
func TestEndUnwatched(t *testing.T) {
	d, c := joinChild(t)
	p := d.Process(1)
	d.Close()
	if err := end(t, p); !errors.Is(err, domain.ErrUnwatched) {
		t.Error(err)
	}
	if err := syscall.Kill(c.cmd.Process.Pid, 0); err != nil {
		t.Errorf("the child: %v", err)
	}
}

// TestEndDuringARendezvous: the contact that is about to be used is replaced by that of
// another rendezvous, which is taken.
func TestEndDuringARendezvous(t *testing.T) {
	d, _ := joinChild(t)
	defer d.Close()
	p := d.Process(1).(*member)
	old := p.contact.Load()
	process := must(peerProcesses.acquire(old.pid, nil)) // it is known
	fresh := &contact{rank: 1, liveness: liveness{kind: old.kind, pid: old.pid, process: process}}
	old.unwatch()
	if err := fresh.watch(func() {}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	old.endMu.Lock()
	go func() { ended <- p.End() }()
	for range 100 {
		runtime.Gosched() // it waits for the lock by then, or takes the fresh one
	}
	p.contact.Store(fresh)
	peerProcesses.release(old.process)
	old.ended = true
	old.endMu.Unlock()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	awaitLost(t, p)
}
