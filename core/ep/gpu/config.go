package gpu

import (
	"time"
)

// Bounds that apply when a Config leaves them 0.
const (
	DefaultSlots         = 2
	DefaultMaxSelections = 1 << 18
	DefaultMaxExperts    = 1024
	DefaultQuietTimeout  = 10 * time.Second
)

// Config says how a buffer is made. Ranks of one group agree on NumSlots and
// NumBytes; the rest is each rank's own.
type Config struct {
	// NumSlots is the number of operations in flight, 1 to cuda.MaxSlots; 0
	// means DefaultSlots.
	NumSlots int
	// NumBytes of device memory hold the slabs of all slots; see SizeHint. It
	// must be given: on a device nothing is sized by the first dispatch.
	NumBytes int64
	// MaxSelections bounds T*K of a dispatch, MaxExperts its E; 0 means the
	// defaults. Each slot has 12 bytes per selection and 20 + 8 R per expert.
	MaxSelections, MaxExperts int
	// Joining: the group is already running. Calls work after Install.
	Joining bool
	// QuietTimeout bounds how long Prepare and Close wait until the device has
	// done what was launched; 0 means DefaultQuietTimeout.
	QuietTimeout time.Duration
}
