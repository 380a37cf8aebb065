package shm

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport/transporttest"
)

// newGroupWith makes groups whose ranks have these pages.
func newGroupWith(pages Pages) func(*testing.T, int, int64) []domain.Domain {
	return func(t *testing.T, n int, controlBytes int64) []domain.Domain {
		t.Helper()
		listeners, all := make([]*Listener, n), make([][]byte, n)
		for r := range n {
			l, err := Open(Config{Rank: r, NumRanks: n, ControlBytes: controlBytes, ABIVersion: 7, Pages: pages})
			if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOSYS) {
				testenv.Lacking(t, "hugepages", err.Error())
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			listeners[r], all[r] = l, l.Metadata()
		}
		domains, errs := connectAll(listeners, all, 30*time.Second)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, d := range domains {
			t.Cleanup(func() { d.Close() })
		}
		return domains
	}
}

// Segments do what segments do, whatever memory they are made of.
func TestConformanceOfPages(t *testing.T) {
	for name, pages := range map[string]Pages{
		"advised, local": {Huge: HugeAdvise, Local: true},
		"required":       {Huge: HugeRequire},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, transporttest.Harness{New: newGroupWith(pages), NewPartial: newPartialGroup})
		})
	}
}

func TestPagesRefused(t *testing.T) {
	_, err := Open(Config{NumRanks: 1, ControlBytes: 8, Pages: Pages{Huge: 3}})
	if err == nil || !strings.Contains(err.Error(), "huge_pages is 3, allowed 0") {
		t.Error(err)
	}
}

// More than any machine has reserved: the error says what is needed and free.
func TestTooFewHugePages(t *testing.T) {
	p := Pages{Huge: HugeRequire}
	err := p.explain(syscall.ENOMEM, 3<<20)
	if !errors.Is(err, syscall.ENOMEM) || !strings.Contains(err.Error(), "3145728 bytes need 2 reserved pages") {
		t.Error(err)
	}
	if _, err := newGroupWith(p)(t, 1, 4096)[0].(*hostDomain).growBy(1 << 45); !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
}

// TestReservedPagesKeepTheFile: the kernel maps no more of it without its descriptor.
func TestReservedPagesKeepTheFile(t *testing.T) {
	domains := newGroupWith(Pages{Huge: HugeRequire})(t, 2, 4096)
	if domains[0].(*hostDomain).known[1].memory == nil {
		t.Error("a peer's descriptor is closed")
	}
	if _, own, err := domains[1].AddSlab(3 << 20); err != nil {
		t.Fatal(err)
	} else if own.Word(2 << 20).Store(7); must(domains[0].Slab(1, 0)).Word(2<<20).Load() != 7 {
		t.Error("the slab is not the peer's")
	}
}
