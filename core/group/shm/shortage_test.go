package shm

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
)

// freeVariable is how many descriptors a child has left when it connects.
const freeVariable = "MOEWIRE_TEST_SHM_FREE"

const (
	shortDeadline = 500 * time.Millisecond
	// A quiet machine needs less than 100 ms; this one may be busy.
	maxOverrun = time.Second
)

// joinShort connects with few descriptors, and says what came of it, when, and
// how long the process was busy with that.
func (c *childRank) joinShort(free string) error {
	l, err := Open(Config{Rank: c.rank, NumRanks: c.numRanks, ControlBytes: 4096})
	if err != nil {
		return err
	}
	fmt.Println("metadata", hex.EncodeToString(l.Metadata()))
	all, err := c.readAll()
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(free); err == nil {
		if err := leave(n); err != nil {
			return err
		}
	}
	begin, busy := time.Now(), testenv.BusyTime()
	d, err := l.Connect(all, shortDeadline)
	took, busy := time.Since(begin), testenv.BusyTime()-busy
	if err == nil {
		err = fmt.Errorf("connected")
		defer d.Close()
	}
	fmt.Println("result", took.Milliseconds(), busy.Milliseconds(), err)
	_, _ = c.in.ReadString('\n') // the others may still need this rank
	return nil
}

// leave lets this process open n more descriptors.
func leave(n int) error {
	open := map[int]bool{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			if _, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
				open[fd] = true
			}
		}
	}
	limit := 0
	for ; n > 0 || open[limit]; limit++ {
		if !open[limit] {
			n--
		}
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		return err
	}
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(limit), Max: before.Max})
}

// TestConnectWithFewDescriptors: one of three ranks may open so many more. All
// return by the deadline, without burning a processor, and that rank says what it
// lacks: never that another rank has ended, is on another host, or has sent
// something wrong. A rank that has enough of them connects.
func TestConnectWithFewDescriptors(t *testing.T) {
	for _, short := range []int{0, 1, 2} {
		for _, free := range []int{0, 1, 2, 3, 4, 5, 6, 7, 20} {
			if testing.Short() && (short == 1 || free > 4) {
				continue
			}
			t.Run(fmt.Sprintf("rank %d has %d", short, free), func(t *testing.T) {
				t.Parallel()
				connectShort(t, short, free)
			})
		}
	}
}

func connectShort(t *testing.T, short, free int) {
	children, all := make([]*child, 3), make([]string, 3)
	for r := range children {
		own := ""
		if own = "all"; r == short {
			own = strconv.Itoa(free)
		}
		children[r] = startChildWith(t, r, 3, byPeerPidfd, nil, freeVariable+"="+own)
	}
	for r, c := range children {
		all[r] = c.expectLine("metadata")
	}
	for _, c := range children {
		c.tell(strings.Join(all, "\n"))
	}
	limit := (shortDeadline + maxOverrun).Milliseconds()
	for r, c := range children {
		var took, busy int64
		line := c.expectLine("result")
		_, err := fmt.Sscanf(line, "%d %d", &took, &busy)
		switch {
		case err != nil || took > limit:
			t.Errorf("rank %d: %s, %v: allowed are %d ms", r, line, err, limit)
		case busy > shortDeadline.Milliseconds()/2:
			t.Errorf("rank %d: %s: it was busy for %d ms", r, line, busy)
		case r == short && !strings.Contains(line, "too many open files, limit ") && !strings.HasSuffix(line, "connected"):
			t.Errorf("rank %d: %s: it does not name what it lacks", r, line)
		case free == 20 && !strings.HasSuffix(line, "connected"):
			t.Errorf("rank %d: %s", r, line)
		}
		t.Logf("rank %d: %s", r, line)
	}
	for _, c := range children {
		c.tell("")
	}
}

// TestAcceptThatFailsKeepsTheDeadline, whatever the reason, and leaves nothing
// behind; it may work again before the deadline.
func TestAcceptThatFailsKeepsTheDeadline(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EPERM} {
		listeners, all := openAll(t, 2, 64)
		stop := sys.FailCall("accept4", errno)
		defer stop()
		begin, busy := time.Now(), testenv.BusyTime()
		_, errs := connectAll(listeners, all, shortDeadline)
		if d := time.Since(begin); d > shortDeadline+maxOverrun {
			t.Errorf("%v: took %v", errno, d)
		}
		if d := testenv.BusyTime() - busy; d > shortDeadline/2 {
			t.Errorf("%v: busy for %v", errno, d)
		}
		if errs[0] == nil || !strings.Contains(errs[0].Error(), "accept4: "+errno.Error()) {
			t.Errorf("%v: rank 0: %v", errno, errs[0])
		}
		stop()
	}
	listeners, all := openAll(t, 2, 64)
	stop := sys.FailCall("accept4", syscall.EMFILE)
	defer stop()
	time.AfterFunc(shortDeadline/2, stop)
	l := listeners[1]
	listeners[1] = nil
	time.AfterFunc(shortDeadline, func() { _, _ = l.Connect(all, 20*time.Second) })
	domains, errs := connectAll(listeners, all, 20*time.Second)
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	domains[0].Close()
}
