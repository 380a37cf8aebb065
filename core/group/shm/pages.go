package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/moewire/moewire/core/internal/sys"
)

// HugePages says which pages a rank's memory has.
type HugePages int

// The kinds of pages.
const (
	HugeNever   HugePages = iota // the kernel's ordinary ones, or what it prefers
	HugeAdvise                   // slabs ask for huge ones; the kernel may refuse
	HugeRequire                  // reserved huge ones, or an error
)

// Pages are a rank's choices for its memory.
type Pages struct {
	Huge HugePages
	// Local takes the memory of this rank's slabs from the NUMA node on which
	// Open was called.
	Local bool
	node  int // of Local
}

// Check says what is wrong with a choice that does not exist.
func (p *Pages) Check() error {
	if p.Huge < HugeNever || p.Huge > HugeRequire {
		return fmt.Errorf("huge_pages is %d, allowed %d (never), %d (advise) and %d (require)",
			p.Huge, HugeNever, HugeAdvise, HugeRequire)
	}
	return nil
}

func (p *Pages) open() (err error) {
	if err := p.Check(); err != nil {
		return err
	}
	if p.Local {
		p.node, err = sys.CurrentNode()
	}
	return err
}

// newMemory makes the memory file of a rank.
func (p *Pages) newMemory(name string) (*sys.FD, error) {
	if p.Huge != HugeRequire {
		return sys.NewMemfd(name)
	}
	fd, err := sys.NewHugeMemfd(name)
	if err != nil {
		return nil, fmt.Errorf("huge pages are required, and this kernel has none of %d bytes: %w", sys.HugePageBytes, err)
	}
	return fd, nil
}

// explain says what is missing when memory in huge pages cannot be mapped.
func (p *Pages) explain(err error, numBytes int64) error {
	if p.Huge != HugeRequire || !errors.Is(err, syscall.ENOMEM) {
		return err
	}
	free, _ := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	return fmt.Errorf("huge pages are required: %d bytes need %d reserved pages of 2 MiB, free are %s (set vm.nr_hugepages; a rank needs those of its slabs, one more, and a slab more for each that a late rank may still write to): %w",
		numBytes, (numBytes+sys.HugePageBytes-1)/sys.HugePageBytes, bytes.TrimSpace(free), err)
}

// apply prepares the mapping of a slab; own: it is this rank's.
func (p *Pages) apply(r *region, own bool) error {
	if p.Huge == HugeAdvise {
		_ = sys.AdviseHuge(r.mapping) // a wish; where it counts is seen by the doctor
	}
	if own && p.Local {
		if err := sys.PreferNode(r.mapping, p.node); err != nil {
			return fmt.Errorf("memory near this processor is asked for (numa): %w", err)
		}
	}
	return nil
}
