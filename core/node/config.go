package node

import (
	"fmt"
	"time"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/limits"
)

// ABIVersion is the version that all ranks of a group have: that of moewire.h.
const ABIVersion = 14

// Config says how a rank's part of a buffer is made. Ranks of one group agree on
// NumRanks, NumBytes, NumSlots, Deterministic, on whether there is CUDA, and on the
// fields of Hosts that say so; each rank chooses the rest for itself.
type Config struct {
	Rank, NumRanks int
	// Config is the engine's. SizeHint says how large NumBytes must be, SpinFor is at most
	// limits.SpinUs, and Joining is not looked at.
	ep.Config
	// Kernels place and reduce rows on the CPU; Pages hold them there.
	Kernels kernels.Options
	Pages   shm.Pages
	// Hosts says how ranks reach one another. Zero means shared memory of one host.
	Hosts Hosts
	// CUDA, if not nil, puts rows into the memory of a GPU.
	CUDA *CUDA
	// Name is what errors call the buffer; "" means "buffer".
	Name string
}

// FieldError is ep.ErrInvalid about one field of a Config.
type FieldError struct {
	Field   string // as in docs/configuration.md
	Problem string // what follows the field's name in the text
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%v: %s%s", ep.ErrInvalid, e.Field, e.Problem)
}

// Unwrap returns ep.ErrInvalid.
func (e *FieldError) Unwrap() error { return ep.ErrInvalid }

func wrong(field, problem string, args ...any) error {
	return &FieldError{Field: field, Problem: fmt.Sprintf(problem, args...)}
}

func outside(r limits.Range, given int64) error {
	return wrong(r.Name, " is %d, allowed %s", given, r)
}

// within is for a range of microseconds.
func within(r limits.Range, d time.Duration) bool {
	return time.Duration(r.Least)*time.Microsecond <= d && d <= time.Duration(r.Most)*time.Microsecond
}

func (c *Config) check() error {
	switch {
	case !limits.NumRanks.Has(int64(c.NumRanks)):
		return outside(limits.NumRanks, int64(c.NumRanks))
	case c.Rank < 0 || c.Rank >= c.NumRanks:
		return wrong("rank", " is %d, allowed 0 to %d", c.Rank, c.NumRanks-1)
	case c.SpinFor >= 0 && !within(limits.SpinUs, c.SpinFor):
		return outside(limits.SpinUs, micros(c.SpinFor))
	}
	if err := c.Kernels.Check(); err != nil {
		return wrong("", "%v", err)
	}
	if err := c.Pages.Check(); err != nil {
		return wrong("", "%v", err)
	}
	return nil
}

// SizeHint returns the NumBytes for operations up to a shape, with NumSlots slots (0:
// ep.DefaultSlots).
func SizeHint(shape layout.Shape, numSlots int) (int64, error) {
	if numSlots == 0 {
		numSlots = ep.DefaultSlots
	}
	if err := limits.NumSlots.Check(int64(numSlots)); err != nil {
		return 0, ep.Invalid("%s", err)
	}
	return layout.SizeHint(shape, int64(numSlots))
}
