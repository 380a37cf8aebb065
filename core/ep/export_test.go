package ep

import "time"

// SetClock makes a buffer take the time from a test.
func SetClock(b *Buffer, now func() time.Time) { b.now = now }

// SetPatience fixes the longest sleep of a wait, which otherwise depends on
// the machine.
func SetPatience(b *Buffer, d time.Duration) { b.patience = d }

// SetRecording turns recording on or off between operations, so that both can
// be timed on the same memory.
func (b *Buffer) SetRecording(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rec.on = on
}
