package shm

import (
	"encoding/hex"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
)

// replaceChild lets a fresh child take over rank 1 of a group of two.
func replaceChild(t *testing.T, d domain.Domain) *child {
	t.Helper()
	c := startChild(t, 1, 2, byPeerPidfd, nil)
	l := must(Relist(d, nil))
	defer l.Close()
	all := [][]byte{l.Metadata(), must(hex.DecodeString(c.expectLine("metadata")))}
	c.tell(hex.EncodeToString(all[0]) + "\n" + hex.EncodeToString(all[1]))
	change, err := l.Reconnect(all, 20*time.Second)
	if err == nil {
		err = change.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.expectLine("connected")
	return c
}

func awaitLost(t *testing.T, p domain.Process) {
	t.Helper()
	for start := time.Now(); p.Lost() == nil; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("a killed process is not lost")
		}
	}
	if err := p.Lost(); !errors.Is(err, domain.ErrExited) || !p.Dying() {
		t.Errorf("lost: %v, dying: %v", err, p.Dying())
	}
}

// TestRejoiningProcessesLeaveNothing counts descriptors as package doc does.
func TestRejoiningProcessesLeaveNothing(t *testing.T) {
	d, c := joinChild(t) // package os opens some descriptors for itself once
	d.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	fds, maps := sys.Stats().OpenFDs, mapped()
	d, c = joinChild(t)
	var first string
	for round := range 20 {
		old := d.Process(1)
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		awaitLost(t, old)
		c = replaceChild(t, d)
		if p := d.Process(1); p == old || p.PID() != c.cmd.Process.Pid || p.Lost() != nil || p.Dying() {
			t.Errorf("round %d: rank 1 is process %d, lost %v", round, p.PID(), p.Lost())
		}
		if got := sys.Stats().OpenFDs - fds; got != 2+3+1 {
			t.Errorf("round %d: %d descriptors", round, got)
		}
		if old.Lost() == nil || !old.Dying() {
			t.Error("a process has come back to life")
		}
		if got := mapped(); round == 0 {
			first = got
		} else if got != first {
			t.Errorf("round %d: mapped %s, at first %s", round, got, first)
		}
	}
	d.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	if processWatcher.run != nil {
		t.Error("the watcher still runs")
	}
	if got := sys.Stats().OpenFDs; got != fds || mapped() != maps {
		t.Errorf("after Close %d descriptors and %s, before %d and %s", got, mapped(), fds, maps)
	}
}

func mapped() string {
	s := sys.Stats()
	return fmt.Sprint(s.Mappings, " ranges, ", s.MappedBytes, " bytes")
}

// TestSurvivorsMeetAgainAndAgain also aborts every second rendezvous here: the
// peer, which commits, does not take that for a death.
func TestSurvivorsMeetAgainAndAgain(t *testing.T) {
	for best, perPeer := range map[livenessKind]int64{byPeerPidfd: 1, byPidfdOpen: 1, byConnection: 1} {
		t.Run(best.String(), func(t *testing.T) {
			defer func(was livenessKind) { bestLiveness = was }(bestLiveness)
			bestLiveness = best
			fds := sys.Stats().OpenFDs
			c := startChild(t, 1, 2, best, nil)
			d := c.join(t)
			defer d.Close()
			p := d.Process(1)
			for round := range 6 {
				meetAgain(t, d, c, round%2 == 0)
				if got := sys.Stats().OpenFDs - fds; got != 2+3+perPeer || d.Process(1) != p || p.Lost() != nil {
					t.Errorf("round %d: %d descriptors, lost: %v", round, got, p.Lost())
				}
				c.tell("lost 0")
				c.expectLine("<nil>")
			}
			meetAgain(t, d, c, true)
			_ = c.cmd.Process.Kill()
			awaitLost(t, p)
		})
	}
}

func meetAgain(t *testing.T, d domain.Domain, c *child, commit bool) {
	t.Helper()
	c.tell("relist")
	l := must(Relist(d, nil))
	defer l.Close()
	all := [][]byte{l.Metadata(), must(hex.DecodeString(c.expectLine("metadata")))}
	c.tell("reconnect\n" + hex.EncodeToString(all[0]) + "\n" + hex.EncodeToString(all[1]))
	change, err := l.Reconnect(all, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if commit {
		if err := change.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	change.Abort()
	c.expectLine("reconnected")
}

// TestFrozenProcessIsReplaced: the old one is watched on, its memory is not
// kept.
func TestFrozenProcessIsReplaced(t *testing.T) {
	d, frozen := joinChild(t)
	defer d.Close()
	frozen.tell("write")
	frozen.expectLine("slab")
	must(d.Slab(1, 0))
	old, mappings := d.Process(1), sys.Stats().Mappings
	_ = frozen.cmd.Process.Signal(syscall.SIGSTOP)
	replaceChild(t, d)
	if got := sys.Stats().Mappings; got != mappings-1 { // base for base, slab for nothing
		t.Errorf("%d mappings, before %d", got, mappings)
	}
	if old.Lost() != nil || old.Dying() || old.PID() != frozen.cmd.Process.Pid {
		t.Errorf("a frozen process: lost %v, dying %v", old.Lost(), old.Dying())
	}
	_ = frozen.cmd.Process.Kill()
	awaitLost(t, old)
	if p := d.Process(1); p.Lost() != nil || p.Dying() {
		t.Error("its successor is lost with it")
	}
}

func TestFormerProcessesAreBounded(t *testing.T) {
	domains := newGroup(t, 1, 64)
	defer closeAll(domains)
	d, before := domains[0].(*hostDomain), sys.Stats().OpenFDs
	for range maxFormer + 10 {
		m := &member{}
		endless := func() (*sys.FD, livenessKind, error) { fd, err := sys.NewEvent(); return fd, byPidfdOpen, err }
		c := &contact{liveness: liveness{kind: byPidfdOpen, process: must(peerProcesses.acquire(0, endless))}}
		m.contact.Store(c)
		if err := c.watch(d.ring); err != nil {
			t.Fatal(err)
		}
		d.retire(m)
	}
	if got := sys.Stats().OpenFDs - before; len(d.former) != maxFormer || got != maxFormer+2 {
		t.Errorf("%d former processes with %d descriptors", len(d.former), got)
	}
	d.Close()
	if got := sys.Stats().OpenFDs; got != before-2 {
		t.Errorf("%d descriptors are left, %d before", got, before)
	}
}
