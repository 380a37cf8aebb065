package gpu

import "time"

// SetQuietTimeout changes that of Config, between calls.
func (b *Buffer) SetQuietTimeout(d time.Duration) { b.cfg.QuietTimeout = d }
