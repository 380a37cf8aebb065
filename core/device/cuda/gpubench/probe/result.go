package probe

import (
	"errors"
	"fmt"
)

// Size is how much is asked.
type Size struct {
	Pairs   int // of a block that writes and one that reads; all run at a time
	Threads int // of a block
	Rounds  int // of data that a pair hands over; launches of blocks of which the last sees all
	Clock   int // readings of the clock
	LimitNs int64
}

// Usual is for a GPU, a second at most.
var Usual = Size{Pairs: 16, Threads: 256, Rounds: 2000, Clock: 1 << 20, LimitNs: 1e8}

// Few is for the emulator.
var Few = Size{Pairs: 2, Threads: 16, Rounds: 5, Clock: 100, LimitNs: 60e9}

// Result is what came of it. Values are words of eight bytes.
type Result struct {
	Emulated bool   `json:"emulated,omitempty"`
	What     string `json:"what"`
	Code     string `json:"code"`
	// Values that a block has read behind an acquire, or as the last block, and how many
	// of them were old. The same where nothing orders them, which shows whether old ones
	// can be seen at all.
	Values       uint64 `json:"values"`
	Old          uint64 `json:"old_values"`
	Unordered    uint64 `json:"unordered_values"`
	OldUnordered uint64 `json:"old_unordered_values"`
	// Waits that did not end in time.
	Late uint64 `json:"late"`
	// Threads of one warp that wait for one another, and went on.
	Lanes    int    `json:"lanes"`
	LanesOn  uint64 `json:"lanes_on"`
	ClockMin uint64 `json:"clock_step_ns_min"`
	ClockMax uint64 `json:"clock_step_ns_max"`
	Steps    uint64 `json:"clock_steps"`
	Back     uint64 `json:"clock_back"`
}

// Check says what of it the engine cannot do with.
func (r *Result) Check() error {
	var all []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	refuse(r.Values == 0, "no value was read")
	refuse(r.Old > 0, "%d of %d values were old behind an acquire", r.Old, r.Values)
	refuse(r.Late > 0, "%d waits did not end in time", r.Late)
	refuse(r.LanesOn != uint64(r.Lanes), "%d of %d threads of a warp went on", r.LanesOn, r.Lanes)
	refuse(r.Steps == 0 || r.Back > 0, "the clock made %d steps, %d of them back", r.Steps, r.Back)
	return errors.Join(all...)
}
