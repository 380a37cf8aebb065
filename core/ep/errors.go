package ep

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/limits"
)

// Sentinels, for errors.Is. Messages name the argument or the rank.
var (
	ErrInvalid     = errors.New("invalid argument")
	ErrNoHandle    = errors.New("unknown handle")
	ErrStaleHandle = errors.New("stale handle")
	ErrClosed      = errors.New("buffer is closed")
	ErrMismatch    = errors.New("ranks disagree")
	ErrFenced      = errors.New("fenced: the group went on without this rank; update the membership to rejoin")
	ErrUpdating    = errors.New("the membership is being updated")
	ErrNotCombined = errors.New("operation was released without combining")
	ErrHeld        = errors.New("slot is held")
	// ErrLost ends a routing, a scatter or a gather that lacks a rank or cannot go on, and this
	// rank's part in its epoch.
	ErrLost = errors.New("a rank was lost")
	// ErrInProgress is returned when a slice of time ends before the phase
	// is reached. It is not a failure.
	ErrInProgress = errors.New("in progress")
)

// ErrByOwner ends the operations that are pending when a buffer is closed.
var ErrByOwner = fmt.Errorf("%w by its owner", ErrClosed)

// ErrBetweenEpochs is what calls get between Prepare and Install.
var ErrBetweenEpochs = fmt.Errorf("%w: no call is possible until that has ended", ErrUpdating)

// Held is what a dispatch with KeepHeld gets: num operations are live and were
// never combined, and it would take the slot of operation op, one of them.
func Held(num, numSlots int, op uint64) error {
	return fmt.Errorf("%w: %d operations are in flight and held, num_slots=%d; this dispatch would overwrite the rows of operation %d, whose handle was neither combined nor released: combine it, release it, or ask for more num_slots",
		ErrHeld, num, numSlots, op)
}

// HeldOneWay is what a call in rounds of one-way operations gets while num operations are live and
// were never combined, operation op among them: the rounds go through all slots.
func HeldOneWay(num int, op uint64) error {
	return fmt.Errorf("%w: %d operations are in flight and held, and a routing, a scatter or a gather needs all slots: combine or release them, operation %d first",
		ErrHeld, num, op)
}

// InRange is ErrInvalid for a number out of its range.
func InRange(r limits.Range, v int) error {
	if err := r.Check(int64(v)); err != nil {
		return Invalid("%s", err)
	}
	return nil
}

// Invalid is ErrInvalid with a text.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// fenced is ErrFenced of a rank that has taken itself out: this rank does not know
// whether the group has gone on.
type fenced struct{ why string }

func (f *fenced) Error() string {
	return "fenced: " + f.why + "; update the membership to rejoin, or to go on with those who are left"
}

func (f *fenced) Unwrap() error { return ErrFenced }

// FencedFor is ErrFenced of a rank that takes itself out, and says why.
func FencedFor(why string) error { return &fenced{why} }

// WhyFenced is ErrFenced, with what the domain knows of how this rank came to be
// out: between hosts it may have taken itself out, for want of a quorum, or another rank has said
// why it had to go.
func WhyFenced(dom domain.Domain) error {
	if d, ok := dom.(interface{ WhyOut() string }); ok {
		if why := d.WhyOut(); why != "" {
			return &fenced{why}
		}
	}
	if d, ok := dom.(explaining); ok {
		if why := d.Explained(dom.Rank()); why != "" {
			return fmt.Errorf("%w (%s)", ErrFenced, why)
		}
	}
	return ErrFenced
}
