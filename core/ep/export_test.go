package ep

import "time"

// SetClock makes a buffer take the time from a test.
func SetClock(b *Buffer, now func() time.Time) { b.now = now }

// SetPatience fixes the longest sleep of a wait, which otherwise depends on
// the machine.
func SetPatience(b *Buffer, d time.Duration) { b.patience = d }
