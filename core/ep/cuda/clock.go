package cuda

import "time"

// deviceClock finds how far the host's clock is ahead of the device's. The host learns
// of each moment some time later, so the difference is the least that was seen. Clocks
// drift, so from time to time the difference may rise again, a little.
type deviceClock struct {
	known bool
	ahead int64 // ns
	least int64 // since the latest rise
	until int64 // when it may rise again, in the host's time
}

const (
	riseEvery = int64(10 * time.Second)
	// mostRise is 50 millionths of riseEvery.
	mostRise = riseEvery / 20_000
)

// see notes that a moment of the device has become known at a time of the host's.
func (c *deviceClock) see(device uint64, host int64) {
	ahead := host - int64(device)
	if !c.known {
		*c = deviceClock{known: true, ahead: ahead, least: ahead, until: host + riseEvery}
		return
	}
	c.ahead, c.least = min(c.ahead, ahead), min(c.least, ahead)
	if host >= c.until {
		c.ahead = min(c.least, c.ahead+mostRise)
		c.least, c.until = ahead, host+riseEvery
	}
}

// at converts a moment of the device into the host's time. 0 stays 0.
func (c *deviceClock) at(device uint64) int64 {
	if device == 0 {
		return 0
	}
	return int64(device) + c.ahead
}
