package ep

// SetRecording turns recording on or off between operations, so that both can
// be timed on the same memory.
func (b *Buffer) SetRecording(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rec.on = on
}
