package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// remeet holds a rendezvous of the ranks in present: those with a domain
// reconnect and commit, the others open and connect. domains is updated.
func remeet(t *testing.T, domains []domain.Domain, present uint64) {
	t.Helper()
	listeners, all := relistAll(t, domains, present)
	errs := make([]error, len(domains))
	eachListener(listeners, func(r int, l *Listener) {
		if domains[r] == nil {
			domains[r], errs[r] = l.Connect(all, 20*time.Second)
			return
		}
		var c *Change
		if c, errs[r] = l.Reconnect(all, 20*time.Second); errs[r] == nil {
			errs[r] = c.Commit()
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func eachListener(listeners []*Listener, f func(r int, l *Listener)) {
	var wg sync.WaitGroup
	for r, l := range listeners {
		if l != nil {
			wg.Add(1)
			go func() { defer wg.Done(); f(r, l) }()
		}
	}
	wg.Wait()
}

func relistAll(t *testing.T, domains []domain.Domain, present uint64) ([]*Listener, [][]byte) {
	t.Helper()
	n := len(domains)
	listeners, all := make([]*Listener, n), make([][]byte, n)
	for r := range n {
		if present&(1<<r) == 0 {
			continue
		}
		var err error
		if domains[r] == nil {
			listeners[r], err = Open(Config{Rank: r, NumRanks: n, ControlBytes: 4096, ABIVersion: 7})
		} else {
			listeners[r], err = Relist(domains[r], []byte("again"))
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listeners[r].Close() })
		all[r] = listeners[r].Metadata()
	}
	return listeners, all
}

func closeAll(domains []domain.Domain) {
	for _, d := range domains {
		if d != nil {
			d.Close()
		}
	}
}

// checkShared lets every present rank write to every other, by control
// region and by a new slab.
func checkShared(t *testing.T, domains []domain.Domain, present uint64) {
	t.Helper()
	ids := make([]int, len(domains))
	eachPresent(present, func(me int) {
		id, slab, err := domains[me].AddSlab(4096)
		if err != nil {
			t.Fatal(err)
		}
		ids[me] = id
		slab.Word(0).Store(uint64(1000*me + id))
		eachPresent(present, func(r int) { domains[me].Control(r).Word(int64(8 * me)).Add(1) })
	})
	eachPresent(present, func(me int) {
		if got := domains[me].Present().Word(); got != present {
			t.Errorf("rank %d: present %b, not %b", me, got, present)
		}
		eachPresent(present, func(r int) {
			if s, err := domains[me].Slab(r, ids[r]); err != nil || s.Word(0).Load() != uint64(1000*r+ids[r]) {
				t.Errorf("rank %d: slab %d of rank %d: %v", me, ids[r], r, err)
			}
			if domains[me].Control(r).Word(int64(8*me)).Load() != domains[r].Control(r).Word(int64(8*me)).Load() {
				t.Errorf("ranks %d and %d see different control regions", me, r)
			}
		})
		for r := range domains {
			absent := present&(1<<r) == 0
			if (domains[me].Control(r) == nil) != absent || (domains[me].Process(r) == nil) != absent {
				t.Errorf("rank %d: rank %d absent is %v, but control %v", me, r, absent, domains[me].Control(r))
			}
		}
	})
}

func eachPresent(present uint64, f func(r int)) {
	for r := range rankset.MaxRanks {
		if present&(1<<r) != 0 {
			f(r)
		}
	}
}

func TestRejoin(t *testing.T) {
	domains := newGroup(t, 3, 4096)
	defer closeAll(domains)
	checkShared(t, domains, 0b111)
	word := domains[0].Members()
	word.CompareAndSwap(word.Load(), 5<<membership.EpochShift|0b101)
	before, old := addresses(domains[0]), domains[0].Process(1)
	domains[1].Close() // its process lives on
	domains[1] = nil
	remeet(t, domains, 0b111)
	checkShared(t, domains, 0b111)
	after := addresses(domains[0])
	if after[0] != before[0] || after[2] != before[2] || after[1] == before[1] && domains[0].Process(1) == old {
		t.Errorf("addresses were %#x, are %#x", before, after)
	}
	for r, d := range domains {
		if got := d.Members().Load(); got != 5<<membership.EpochShift|0b101 {
			t.Errorf("rank %d: the rendezvous changed the members word to %#x", r, got)
		}
	}
	if domains[0].Process(1) == old || old.Lost() != nil {
		t.Errorf("the replaced process: %v", old.Lost())
	}
}

// TestScale also meets under another lowest rank, and lets ranks return with
// the memory that they had.
func TestScale(t *testing.T) {
	domains := newPartialGroup(t, rankset.Of(1, 2, 4, 5), 8, 4096)
	defer closeAll(domains)
	checkShared(t, domains, 0b00110110)
	kept := domains[5].Control(1)
	for _, present := range []uint64{0b00110100, 0b11110101, 0b11111111} {
		remeet(t, domains, present)
		checkShared(t, domains, present)
	}
	if domains[5].Control(1) != kept {
		t.Error("a rank that has returned lies at another address")
	}
	if got := domains[7].Members(); got.Load() != 1<<membership.EpochShift|0b00110110 {
		t.Errorf("members word %#x", got.Load())
	}
	if word := domains[0].Members(); !word.CompareAndSwap(word.Load(), word.Load()+1<<membership.EpochShift) {
		t.Error("nobody else changes the word, and it did not change")
	}
	if domains[7].Members().Load()>>membership.EpochShift != 2 {
		t.Error("the joiners have another members page")
	}
}

// TestSurvivorsMeetForTheFirstTime: rank 2 comes while 1 is away, so they
// meet for the first time as two survivors.
func TestSurvivorsMeetForTheFirstTime(t *testing.T) {
	domains := newPartialGroup(t, rankset.Of(0, 1), 3, 4096)
	defer closeAll(domains)
	remeet(t, domains, 0b101)
	remeet(t, domains, 0b111)
	checkShared(t, domains, 0b111)
}

func TestNothingChangesBeforeCommit(t *testing.T) {
	domains := newGroup(t, 3, 4096)
	defer closeAll(domains)
	for round := range 3 {
		before, held := addresses(domains[0]), holdings(t)
		joiner := []domain.Domain{domains[0], nil, domains[2]}
		listeners, all := relistAll(t, joiner, 0b111)
		changes := make([]*Change, 3)
		var joined domain.Domain
		errs := make([]error, 3)
		eachListener(listeners, func(r int, l *Listener) {
			if r == 1 {
				joined, errs[r] = l.Connect(all, 20*time.Second)
			} else {
				changes[r], errs[r] = l.Reconnect(all, 20*time.Second)
			}
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if c := changes[0]; c.Fresh() != rankset.Of(1) || c.Present() != rankset.Upto(3) {
			t.Errorf("fresh %v, present %v", c.Fresh(), c.Present())
		}
		if got := addresses(domains[0]); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("addresses were %#x, are %#x", before, got)
		}
		changes[0].Abort()
		changes[2].Abort()
		changes[0].Abort()
		if err := changes[0].Commit(); err == nil {
			t.Error("an aborted change was committed")
		}
		joined.Close()
		for _, l := range listeners {
			l.Close()
		}
		if got := holdings(t); got != held {
			t.Errorf("round %d: before: %s\nafter:  %s", round, held, got)
		}
	}
	checkShared(t, domains, 0b111)
}

// TestTableIsReadDuringCommit runs readers while ranks come and go.
func TestTableIsReadDuringCommit(t *testing.T) {
	domains := newGroup(t, 3, 4096)
	defer closeAll(domains)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for d := domains[0]; ; {
				select {
				case <-stop:
					return
				default:
				}
				for r := range 3 {
					d.Wake(r)
					d.Control(r)
					if p := d.Process(r); p != nil && (p.Dying() || p.Lost() != nil) {
						t.Error("a living process is lost")
					}
				}
				_, _ = d.Slab(1, 0)
				d.Sleep(d.PrepareSleep(), 10*time.Microsecond)
			}
		}()
	}
	for range 20 {
		domains[1].Close()
		domains[1] = nil
		remeet(t, domains, 0b101)
		remeet(t, domains, 0b111)
	}
	close(stop)
	wg.Wait()
}

func TestRejoinRoundsLeaveNothing(t *testing.T) {
	before := holdings(t)
	domains := newGroup(t, 3, 4096)
	var first string
	for round := range 20 {
		killed := round % 3
		domains[killed].Close()
		domains[killed] = nil
		remeet(t, domains, 0b111)
		if _, err := domains[(killed+1)%3].Slab(killed, 0); err == nil {
			t.Error("a new rank has a slab")
		}
		if got := holdings(t); round == 0 {
			first = got
		} else if got != first {
			t.Errorf("round %d: at first %s\nnow %s", round, first, got)
		}
	}
	closeAll(domains)
	if after := holdings(t); after != before {
		t.Errorf("before: %s\nafter:  %s", before, after)
	}
	if sockets, err := os.ReadFile("/proc/self/net/unix"); err == nil && strings.Contains(string(sockets), "@"+domains[0].(*hostDomain).info.Socket) {
		t.Error("a socket is left")
	}
}
