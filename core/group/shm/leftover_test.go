package shm

import (
	"encoding/hex"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/testenv"
)

// joinChild connects this process, as rank 0, with a child.
func joinChild(t *testing.T) (domain.Domain, *child) {
	t.Helper()
	c := startChild(t, 1, 2, byPeerPidfd, nil)
	return c.join(t), c
}

// join connects this process, as rank 0, with a child that joins.
func (c *child) join(t *testing.T) domain.Domain {
	t.Helper()
	l, err := Open(Config{Rank: 0, NumRanks: 2, ControlBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	all := [][]byte{l.Metadata(), nil}
	if all[1], err = hex.DecodeString(c.expectLine("metadata")); err != nil {
		t.Fatal(err)
	}
	c.tell(hex.EncodeToString(all[0]) + "\n" + hex.EncodeToString(all[1]))
	d, err := l.Connect(all, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.expectLine("connected")
	return d
}

// TestOneWatcherForAllDomains counts goroutines and descriptors over two
// domains with other processes, one of which is killed.
func TestOneWatcherForAllDomains(t *testing.T) {
	holdings(t) // lets earlier tests' goroutines end
	goroutines := runtime.NumGoroutine()
	a, killed := joinChild(t)
	b, survivor := joinChild(t)
	if got := runtime.NumGoroutine(); got != goroutines+1 {
		t.Errorf("%d goroutines with two domains, %d without", got, goroutines)
	}
	_ = killed.cmd.Process.Kill()
	for start := time.Now(); a.Process(1).Lost() == nil && time.Since(start) < 10*time.Second; {
		a.Sleep(a.PrepareSleep(), time.Second)
	}
	if err := a.Process(1).Lost(); !errors.Is(err, domain.ErrExited) {
		t.Errorf("killed process: %v", err)
	}
	if err := b.Process(1).Lost(); err != nil {
		t.Errorf("the other domain's peer: %v", err)
	}
	survivor.tell("close")
	survivor.expectLine("closed")
	_, _ = a.Close(), b.Close()
	if got := leftGoroutines(goroutines); got != goroutines {
		t.Errorf("%d goroutines after Close, %d before", got, goroutines)
	}
	if processWatcher.run != nil {
		t.Error("the watcher still runs")
	}
}

// TestWatchedDomainLeavesNothing is TestNothingIsLeft with another process.
func TestWatchedDomainLeavesNothing(t *testing.T) {
	round := func() {
		d, c := joinChild(t)
		d.Close()
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
	round() // package os opens some descriptors for itself once
	before := holdings(t)
	round()
	if after := holdings(t); after != before {
		t.Errorf("before: %s\nafter:  %s", before, after)
	}
}

// TestKilledProcessLeavesNothing looks where a name could stay.
func TestKilledProcessLeavesNothing(t *testing.T) {
	c := startChild(t, 1, 2, byPeerPidfd, nil)
	raw, err := hex.DecodeString(c.expectLine("metadata"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := ParseMetadata(raw)
	if err != nil {
		t.Fatal(err)
	}
	if !socketExists(t, info.Socket) {
		t.Fatalf("socket %s is not there to begin with", info.Socket)
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	if socketExists(t, info.Socket) {
		t.Errorf("socket %s is still there", info.Socket)
	}
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		testenv.Lacking(t, "devshm", err.Error())
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), "moewire") {
			t.Errorf("/dev/shm/%s", e.Name())
		}
	}
}

func socketExists(t *testing.T, name string) bool {
	t.Helper()
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		testenv.Lacking(t, "procfs", err.Error())
	}
	return strings.Contains(string(sockets), "@"+name)
}
