package shm

import (
	"encoding/hex"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
)

// joinAll lets all children join one more group.
func joinAll(children []*child) {
	all := make([]string, len(children))
	for _, c := range children {
		c.tell("join")
	}
	for r, c := range children {
		all[r] = c.expectLine("metadata")
	}
	for _, c := range children {
		c.tell(strings.Join(all, "\n"))
	}
	for _, c := range children {
		c.expectLine("connected")
	}
}

// TestDescriptorsOfSeveralBuffers counts what the kernel says against package doc.
func TestDescriptorsOfSeveralBuffers(t *testing.T) {
	const numRanks = 8
	for _, best := range []livenessKind{byPeerPidfd, byPidfdOpen, byConnection} {
		t.Run(best.String(), func(t *testing.T) {
			children := meet(t, numRanks, best)
			for _, c := range children {
				c.expectLine("connected")
			}
			check := func(buffers int) {
				t.Helper()
				want := 2 + 3*buffers + numRanks - 1
				if best == byConnection {
					want = 2 + (3+numRanks-1)*buffers
				}
				if buffers == 0 {
					want = 0
				}
				for r, c := range children {
					c.tell("fds")
					if got := c.expectLine("fds"); got != strconv.Itoa(want) {
						t.Errorf("rank %d with %d buffers: %s descriptors, want %d", r, buffers, got, want)
					}
				}
			}
			check(1)
			joinAll(children)
			check(2)
			for range 3 {
				joinAll(children)
			}
			check(5)
			for left := 4; left >= 0; left-- {
				for _, c := range children {
					c.tell("close")
					c.expectLine("closed")
				}
				check(left)
			}
		})
	}
}

// joinTwice connects this process with a child in two groups.
func joinTwice(t *testing.T) (a, b *hostDomain, c *child) {
	t.Helper()
	first, c := joinChild(t)
	t.Cleanup(func() { _ = first.Close() })
	c.tell("join")
	second := c.join(t)
	t.Cleanup(func() { _ = second.Close() })
	return first.(*hostDomain), second.(*hostDomain), c
}

func processOf(d *hostDomain) *process { return d.known[1].contact.Load().process }

func TestDeathIsReportedToEachBufferOnce(t *testing.T) {
	a, b, c := joinTwice(t)
	if p := processOf(a); p == nil || p != processOf(b) || p.refs != 2 {
		t.Fatalf("two buffers do not share the process: %+v", p)
	}
	before := []uint64{a.own.bell().Load(), b.own.bell().Load()}
	_ = c.cmd.Process.Kill()
	for i, d := range []*hostDomain{a, b} {
		awaitLost(t, d.Process(1))
		time.Sleep(20 * time.Millisecond) // a second ring would have come
		if got := d.own.bell().Load() - before[i]; got != 1 {
			t.Errorf("buffer %d: its sleepers were woken %d times", i, got)
		}
	}
}

// TestOneOfTwoBuffersCloses: the other goes on, learns of the death, and can end a process.
func TestOneOfTwoBuffersCloses(t *testing.T) {
	for _, older := range []bool{true, false} {
		a, b, c := joinTwice(t)
		if !older {
			a, b = b, a
		}
		closed, contact := a.Process(1), a.known[1].contact.Load()
		a.Close()
		contact.end(0) // once more: it has no reference to give up
		if p := processOf(b); p.refs != 1 || p.pidfd.Raw() < 0 || b.Process(1).Lost() != nil {
			t.Fatalf("after the other's close: %+v", p)
		}
		if err := end(t, closed); !errors.Is(err, domain.ErrUnwatched) {
			t.Errorf("a closed buffer ends a process that another one knows: %v", err)
		}
		if err := end(t, b.Process(1)); err != nil {
			t.Error(err)
		}
		awaitLost(t, b.Process(1))
		if closed.Lost() != nil {
			t.Errorf("a closed buffer was told: %v", closed.Lost())
		}
		p := processOf(b)
		b.Close()
		if p.pidfd.Raw() >= 0 || len(peerProcesses.shared) != 0 {
			t.Errorf("the last close leaves descriptor %d, %d processes", p.pidfd.Raw(), len(peerProcesses.shared))
		}
		_ = c.cmd.Wait()
	}
}

// TestKilledDuringASecondRendezvous: that fails, and the first buffer learns of it too.
func TestKilledDuringASecondRendezvous(t *testing.T) {
	d, c := joinChild(t)
	defer d.Close()
	c.tell("join")
	theirs := must(hex.DecodeString(c.expectLine("metadata")))
	before := sys.Stats()
	l := must(Open(Config{Rank: 0, NumRanks: 2, ControlBytes: 4096}))
	time.AfterFunc(50*time.Millisecond, func() { _ = c.cmd.Process.Kill() })
	within(t, 10*time.Second, func() {
		if _, err := l.Connect([][]byte{l.Metadata(), theirs}, shortDeadline); err == nil {
			t.Error("connected with a killed process")
		}
	})
	awaitLost(t, d.Process(1))
	if got := sys.Stats(); got != before {
		t.Errorf("before: %+v\nafter: %+v", before, got)
	}
}

// TestKilledWhileConnecting: the child has said hello in a second group and dies before that
// of three ranks is complete.
func TestKilledWhileConnecting(t *testing.T) {
	for _, rank := range []int{0, 2} { // this rank is dialled, or dials
		first, c := joinChild(t)
		before := sys.Stats()
		l := must(Open(Config{Rank: rank, NumRanks: 3, ControlBytes: 4096}))
		absent := must(Open(Config{Rank: 2 - rank, NumRanks: 3, ControlBytes: 4096}))
		all := [][]byte{l.Metadata(), nil, absent.Metadata()}
		if rank == 2 {
			all[0], all[2] = all[2], all[0]
		}
		c.tell("join-as 1 3")
		theirs := c.expectLine("metadata")
		all[1] = must(hex.DecodeString(theirs))
		c.tell(hex.EncodeToString(all[0]) + "\n" + theirs + "\n" + hex.EncodeToString(all[2]))
		done := make(chan error, 1)
		go func() { _, err := l.Connect(all, 5*time.Second); done <- err }()
		for start := time.Now(); refsOf(first) < 2 && time.Since(start) < 5*time.Second; {
			time.Sleep(time.Millisecond)
		}
		if refsOf(first) != 2 {
			t.Error("the rendezvous does not know the process")
		}
		_ = c.cmd.Process.Kill()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("connecting with a killed process: %v", err)
		}
		absent.Close()
		awaitLost(t, first.Process(1))
		if refsOf(first) != 1 {
			t.Errorf("%d references", refsOf(first))
		}
		if got := sys.Stats(); got.OpenFDs != before.OpenFDs || got.Mappings != before.Mappings {
			t.Errorf("before: %+v\nafter: %+v", before, got)
		}
		first.Close()
	}
}

func refsOf(d domain.Domain) int {
	peerProcesses.mu.Lock()
	defer peerProcesses.mu.Unlock()
	return processOf(d.(*hostDomain)).refs
}

// TestManyBuffersLeaveNothing: a hundred are made and closed beside one that stays, and a
// hundred alone.
func TestManyBuffersLeaveNothing(t *testing.T) {
	d, c := joinChild(t)
	cycle := func(leave bool) {
		c.tell("join")
		second := c.join(t)
		c.tell("write")
		c.expectLine("slab")
		if _, err := second.Slab(1, 0); err != nil {
			t.Error(err)
		}
		c.tell("close")
		c.expectLine("closed")
		if !leave {
			second.Close()
		}
	}
	cycle(false)
	before := holdings(t)
	for range 100 {
		cycle(false)
	}
	if after := holdings(t); after != before {
		t.Errorf("before: %s\nafter:  %s", before, after)
	}
	if refsOf(d) != 1 || d.Process(1).Lost() != nil {
		t.Errorf("%d references, lost: %v", refsOf(d), d.Process(1).Lost())
	}
	d.Close()
	if len(peerProcesses.shared) != 0 || processWatcher.run != nil {
		t.Errorf("%d processes are left", len(peerProcesses.shared))
	}
}

// TestProcessOfAnotherNamespaceIsShared: the child does not see this process's number.
func TestProcessOfAnotherNamespaceIsShared(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacking(t, "root", "only root can make a pid namespace")
	}
	c := startChild(t, 1, 2, byPeerPidfd, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID})
	for range 3 {
		d := c.join(t)
		defer d.Close()
		c.tell("join")
	}
	d := c.join(t)
	defer d.Close()
	pidfd := must(sys.OpenPidfd(os.Getpid()))
	defer pidfd.Close()
	if sys.PidfdID(pidfd) == 0 {
		testenv.Lacking(t, "pidfs", "this kernel has no names of processes")
	}
	c.tell("fds")
	if got := c.expectLine("fds"); got != strconv.Itoa(2+4*3+1) {
		t.Errorf("%s descriptors with 4 buffers", got)
	}
}
