package ep

import "time"

// DefaultSlots is how many operations may be in flight: two, so that one
// thread can send for several ranks before it receives for them, and so that
// two batches can overlap.
const DefaultSlots = 2

// DefaultSlowAfter is how long a wait on one rank may last before it becomes
// an event.
const DefaultSlowAfter = time.Second
