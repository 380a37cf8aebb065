package shm

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
)

// These tests run every rank as a process of its own: the test binary again, with
// childVariable set to what it shall do. A child talks to the test in lines: it prints
// its metadata, reads that of every rank, prints "connected".
const childVariable = "MOEWIRE_TEST_SHM_CHILD"

func TestMain(m *testing.M) {
	if spec := os.Getenv(childVariable); spec != "" {
		if err := runChild(spec); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runChild does "rank,numRanks,liveness".
func runChild(spec string) error {
	var best int
	c := &childRank{in: bufio.NewReader(os.Stdin)}
	if _, err := fmt.Sscanf(spec, "%d,%d,%d", &c.rank, &c.numRanks, &best); err != nil {
		return err
	}
	bestLiveness = livenessKind(best)
	if free := os.Getenv(freeVariable); free != "" {
		return c.joinShort(free)
	}
	_, _ = os.ReadFile("/proc/self/stat") // package os opens some descriptors for itself once
	c.numFDs = numFDs()
	if err := c.join(); err != nil {
		return err
	}
	return c.obey()
}

// childRank is a rank in a process of its own, perhaps of several groups.
type childRank struct {
	rank, numRanks int
	in             *bufio.Reader
	domains        []domain.Domain // commands go to the last
	listener       *Listener       // of relist
	ballast        []byte
	numFDs         int // before it did anything
}

func (c *childRank) domain() domain.Domain { return c.domains[len(c.domains)-1] }

// join connects to a group, whose metadata comes in lines (empty: absent).
func (c *childRank) join() error {
	l, err := Open(Config{Rank: c.rank, NumRanks: c.numRanks, ControlBytes: 4096})
	if err != nil {
		return err
	}
	fmt.Println("metadata", hex.EncodeToString(l.Metadata()))
	all, err := c.readAll()
	if err != nil {
		return err
	}
	d, err := l.Connect(all, 20*time.Second)
	if err != nil {
		return err
	}
	c.domains = append(c.domains, d)
	fmt.Println("connected", d.(*hostDomain).Liveness((c.rank+1)%c.numRanks))
	return nil
}

func (c *childRank) readAll() ([][]byte, error) {
	all := make([][]byte, c.numRanks)
	for r := range all {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if all[r], err = hex.DecodeString(strings.TrimSpace(line)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// obey executes the test's commands until "exit".
func (c *childRank) obey() error {
	for {
		line, err := c.in.ReadString('\n')
		if err != nil {
			return err
		}
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "exit" {
			return nil
		}
		answer, err := c.execute(word, rest)
		if err != nil {
			return err
		}
		if answer != "" {
			fmt.Println(answer)
		}
	}
}

func (c *childRank) execute(word, rest string) (answer string, err error) {
	n, _ := strconv.Atoi(rest)
	switch word {
	case "ring":
		return ring(c.domain(), rest)
	case "await-loss":
		return awaitLoss(c.domain(), rest)
	case "lost":
		return fmt.Sprint(c.domain().Process(n).Lost()), nil
	case "join":
		return "", c.join()
	case "join-as": // another rank of another number
		_, err := fmt.Sscan(rest, &c.rank, &c.numRanks)
		if err != nil {
			return "", err
		}
		return "", c.join()
	case "relist":
		return c.relist()
	case "reconnect":
		return c.reconnect()
	case "write":
		return c.write()
	case "read":
		return c.read()
	case "swap": // the last two domains
		n = len(c.domains)
		c.domains[n-1], c.domains[n-2] = c.domains[n-2], c.domains[n-1]
		return "", nil
	case "close":
		return c.close()
	case "fill": // so many MiB
		c.ballast = bytes.Repeat([]byte{1}, n<<20)
		runtime.GC() // now, not while the test kills
		return "filled", nil
	case "sleep": // in a process that outlives this one
		return "started", exec.Command("sleep", rest).Start()
	case "fds":
		return fmt.Sprint("fds ", numFDs()-c.numFDs), nil
	case "exec":
		fmt.Println("executing")
		return "", syscall.Exec("/bin/sleep", []string{"sleep", rest}, nil)
	case "crash-watcher":
		return crashWatcher()
	}
	return "", fmt.Errorf("command %q", word)
}

func numFDs() int {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(fds)
}

func (c *childRank) close() (string, error) {
	err := c.domain().Close()
	if len(c.domains) > 1 {
		c.domains = c.domains[:len(c.domains)-1]
	}
	return "closed", err
}

// crashWatcher lets the watcher end by a panic, and its thread be reused.
func crashWatcher() (string, error) {
	event, err := sys.NewEvent()
	if err != nil {
		return "", err
	}
	if _, err := processWatcher.add(event, func(failure error) {
		if failure == nil {
			panic("test")
		}
	}); err != nil {
		return "", err
	}
	if err := sys.Signal(event); err != nil {
		return "", err
	}
	<-processWatcher.run.done
	return "crashed", nil
}

func (c *childRank) relist() (answer string, err error) {
	if c.listener, err = Relist(c.domain(), nil); err != nil {
		return "", err
	}
	return "metadata " + hex.EncodeToString(c.listener.Metadata()), nil
}

// reconnect tells what came of it; a failure does not end the process.
func (c *childRank) reconnect() (string, error) {
	all, err := c.readAll()
	if err != nil {
		return "", err
	}
	before := addresses(c.domain())
	change, err := c.listener.Reconnect(all, 20*time.Second)
	if err != nil {
		return "failed " + err.Error(), nil
	}
	fresh := change.Fresh()
	if err := change.Commit(); err != nil {
		return "", err
	}
	for r, was := range before {
		if now := addresses(c.domain())[r]; now != was && now != 0 && was != 0 && !fresh.Has(r) {
			return "", fmt.Errorf("memory of rank %d has moved from %#x to %#x", r, was, now)
		}
	}
	return fmt.Sprintf("reconnected %v", fresh), nil
}

// addresses says where the ranks' control regions are; 0 for absent ones.
func addresses(d domain.Domain) []uint64 {
	at := make([]uint64, d.NumRanks())
	for r := range at {
		if s := d.Control(r); s != nil {
			at[r] = uint64(reflect.ValueOf(s.Word(0)).Pointer())
		}
	}
	return at
}

// write leaves this rank's mark in the control region of every rank and in a new slab of
// its own.
func (c *childRank) write() (string, error) {
	d := c.domain()
	for r := range c.numRanks {
		if s := d.Control(r); s != nil {
			s.Word(int64(8 * c.rank)).Add(1)
		}
	}
	id, slab, err := d.AddSlab(1 << 16)
	if err == nil {
		slab.Word(8).Store(uint64(100*c.rank + id))
	}
	return fmt.Sprintf("slab %d", id), err
}

// read tells the marks in this rank's control region, and checks that the
// latest slab of each present rank is what its rank has written.
func (c *childRank) read() (string, error) {
	d := c.domain()
	var marks []string
	for r := range c.numRanks {
		marks = append(marks, fmt.Sprint(d.Control(c.rank).Word(int64(8*r)).Load()))
		for id := 0; d.Control(r) != nil; id++ {
			s, err := d.Slab(r, id)
			if err != nil && id > 0 {
				break // no more
			}
			if err != nil || s.Word(8).Load() != uint64(100*r+id) {
				return "", fmt.Errorf("slab %d of rank %d: %v", id, r, err)
			}
		}
	}
	return "marks " + strings.Join(marks, " "), nil
}

// ring passes a token round the ranks n times through sleeping waits, then
// checks a slab of the neighbour.
func ring(d domain.Domain, rounds string) (string, error) {
	n, err := strconv.ParseUint(rounds, 10, 64)
	if err != nil {
		return "", err
	}
	id, slab, err := d.AddSlab(1 << 20)
	if err != nil {
		return "", err
	}
	copy(slab.Bytes(100, 1), []byte{byte(d.Rank() + 1)})
	next := (d.Rank() + 1) % d.NumRanks()
	for i := uint64(1); i <= n; i++ {
		if d.Rank() == 0 {
			pass(d, next, i)
		}
		if !sleepUntil(d, i) {
			return "", fmt.Errorf("rank %d: round %d: not woken", d.Rank(), i)
		}
		if d.Rank() != 0 {
			pass(d, next, i)
		}
	}
	seen, err := d.Slab(next, id)
	if err != nil {
		return "", err
	}
	if got := seen.Bytes(100, 1)[0]; got != byte(next+1) {
		return "", fmt.Errorf("slab of rank %d reads %d", next, got)
	}
	return "rung", nil
}

func pass(d domain.Domain, to int, i uint64) {
	d.Control(to).Word(0).Store(i)
	d.Wake(to)
}

func sleepUntil(d domain.Domain, i uint64) bool {
	for start := time.Now(); time.Since(start) < 15*time.Second; {
		ticket := d.PrepareSleep()
		if d.Control(d.Rank()).Word(0).Load() >= i {
			d.CancelSleep()
			return true
		}
		d.Sleep(ticket, 15*time.Second)
	}
	return false
}

// awaitLoss sleeps, without polling, until a rank is lost.
func awaitLoss(d domain.Domain, rank string) (string, error) {
	r, err := strconv.Atoi(rank)
	if err != nil {
		return "", err
	}
	fmt.Println("waiting")
	for start := time.Now(); time.Since(start) < 15*time.Second; {
		ticket := d.PrepareSleep()
		if err := d.Process(r).Lost(); err != nil {
			d.CancelSleep()
			return fmt.Sprintf("%d %v %v", time.Now().UnixNano(), errors.Is(err, domain.ErrExited), err), nil
		}
		d.Sleep(ticket, 15*time.Second)
	}
	return "", fmt.Errorf("rank %d was not lost", r)
}
