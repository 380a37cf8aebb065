package ep

import "time"

// SetClock makes a buffer take the time from a test.
func SetClock(b *Buffer, now func() time.Time) { b.now = now }
