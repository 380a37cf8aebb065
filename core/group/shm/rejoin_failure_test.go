package shm

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/transport"
)

func TestOneChangeAtATime(t *testing.T) {
	domains := newGroup(t, 1, 4096)
	defer closeAll(domains)
	reconnect := func() (*Change, error) {
		l, err := Relist(domains[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.Reconnect([][]byte{l.Metadata()}, time.Second)
	}
	c, err := reconnect()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reconnect(); err == nil || !strings.Contains(err.Error(), "another change") {
		t.Error(err)
	}
	if err := c.Commit(); err != nil {
		t.Error(err)
	}
	c.Abort()
	if c, err = reconnect(); err != nil {
		t.Fatal(err)
	}
	domains[0].Close()
	if err := c.Commit(); !errors.Is(err, transport.ErrClosed) {
		t.Error(err)
	}
	if _, err := Relist(domains[0], nil); !errors.Is(err, transport.ErrClosed) {
		t.Error(err)
	}
}

func TestRelistRefusesOtherDomains(t *testing.T) {
	if _, err := Relist(nil, nil); err == nil {
		t.Error("nil was relisted")
	}
	domains := newGroup(t, 1, 64)
	defer closeAll(domains)
	if _, err := Relist(domains[0], make([]byte, maxParamsBytes+1)); !errors.Is(err, domain.ErrMetadata) {
		t.Error(err)
	}
	l, err := Relist(domains[0], []byte("q"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Connect([][]byte{l.Metadata()}, time.Second); err == nil {
		t.Error("a survivor connected")
	}
	if i := l.Info(); !i.Survivor || string(i.Params) != "q" || i.Identity != domains[0].(*hostDomain).info.Identity {
		t.Errorf("%+v", i)
	}
	fresh, all := openAll(t, 1, 64)
	if _, err := fresh[0].Reconnect(all, time.Second); err == nil {
		t.Error("a rank without a domain reconnected")
	}
}

// TestRendezvousFails lets a rendezvous fail in every way; the domains are as
// before and can meet again.
func TestRendezvousFails(t *testing.T) {
	domains := newGroup(t, 3, 4096)
	defer closeAll(domains)
	for name, spoil := range map[string]func(*Listener, [][]byte){
		"rank 1 did not come":        func(*Listener, [][]byte) {},
		"rank 1 does not listen":     func(l *Listener, _ [][]byte) { l.Close() },
		"rank 1: gave up connecting": func(l *Listener, all [][]byte) { _, _ = l.Reconnect(all, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			held := holdings(t)
			listeners, all := relistAll(t, domains, 0b111)
			spoil(listeners[1], all)
			errs := make([]error, 3)
			within(t, 10*time.Second, func() {
				eachListener(listeners, func(r int, l *Listener) {
					if r != 1 {
						_, errs[r] = l.Reconnect(all, 500*time.Millisecond)
					}
				})
			})
			if errs[0] == nil || errs[2] == nil || !strings.Contains(errors.Join(errs...).Error(), name) {
				t.Errorf("%v, want %s", errs, name)
			}
			for _, l := range listeners {
				l.Close()
			}
			if got := holdings(t); got != held {
				t.Errorf("before: %s\nafter:  %s", held, got)
			}
		})
	}
	remeet(t, domains, 0b111)
	checkShared(t, domains, 0b111)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestCloseEndsReconnect(t *testing.T) {
	for _, what := range []string{"listener", "domain"} {
		domains := newGroup(t, 2, 4096)
		listeners, all := relistAll(t, domains, 0b11)
		time.AfterFunc(50*time.Millisecond, func() {
			if what == "listener" {
				listeners[0].Close()
			} else {
				domains[0].Close()
			}
		})
		within(t, 10*time.Second, func() {
			if _, err := listeners[0].Reconnect(all, time.Minute); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		})
		if what == "listener" {
			remeet(t, domains, 0b11)
			checkShared(t, domains, 0b11)
		}
		closeAll(domains)
	}
}

func TestRejoinChecksMetadata(t *testing.T) {
	domains := newGroup(t, 2, 4096)
	defer closeAll(domains)
	l := must(Relist(domains[0], nil))
	defer l.Close()
	for field, cfg := range map[string]Config{
		"number of ranks": {Rank: 1, NumRanks: 3, ControlBytes: 4096, ABIVersion: 7},
		"control region":  {Rank: 1, NumRanks: 2, ControlBytes: 64, ABIVersion: 7},
		"ABI version":     {Rank: 1, NumRanks: 2, ControlBytes: 4096, ABIVersion: 8},
	} {
		joiner := must(Open(cfg))
		all := [][]byte{l.Metadata(), joiner.Metadata()}
		_, err := l.Reconnect(all, time.Second)
		if !errors.Is(err, transport.ErrMismatch) || !strings.Contains(err.Error(), field) {
			t.Errorf("survivor: %v, want %s", err, field)
		}
		if _, err = joiner.Connect(append(all, make([][]byte, cfg.NumRanks-2)...), time.Second); !errors.Is(err, transport.ErrMismatch) || !strings.Contains(err.Error(), field) {
			t.Errorf("joiner: %v, want %s", err, field)
		}
		joiner.Close()
	}
}

// TestSurvivorsOfTwoGroups must not become one.
func TestSurvivorsOfTwoGroups(t *testing.T) {
	a, b := newGroup(t, 2, 4096), newGroup(t, 2, 4096)
	defer closeAll(append(a, b...))
	listeners, all := relistAll(t, []domain.Domain{a[0], b[1]}, 0b11)
	errs := make([]error, 2)
	eachListener(listeners, func(r int, l *Listener) { _, errs[r] = l.Reconnect(all, 20*time.Second) })
	if !errors.Is(errs[1], transport.ErrMismatch) || errs[0] == nil {
		t.Errorf("survivors of two groups: %v", errs)
	}
}
