package transporttest

import "github.com/moewire/moewire/core/transport"

// finish ends a case: everything that was accepted ends, once each, and
// everything can be closed.
func (c *carrierTest) finish() {
	if c.Failed() {
		// What is open may be why. Free no memory: it may be in use.
		return
	}
	c.retireAll()
	c.until("everything that was posted has ended", func() bool {
		for _, e := range c.ends {
			if !c.gone[e.at] && e.outstanding() > 0 {
				return false
			}
		}
		return true
	})
	c.closeEndpoints()
	c.poll()
	c.closeRegions()
	c.closeTransports()
	for _, m := range c.memories {
		m.free()
	}
}

func (c *carrierTest) retireAll() {
	for _, e := range c.ends {
		if c.gone[e.at] {
			continue
		}
		closed := e.ep.State() == transport.StateClosed
		if err := e.ep.Retire(); err != nil {
			c.Errorf("retire: %v", err)
		}
		if s := e.ep.State(); s != transport.StateError && !closed {
			c.Errorf("retired, and in state %d", s)
		}
	}
}

func (c *carrierTest) closeEndpoints() {
	for _, e := range c.ends {
		if c.gone[e.at] {
			continue
		}
		for range 2 {
			if err := e.ep.Close(); err != nil {
				c.Errorf("close of an endpoint that has nothing outstanding: %v", err)
			}
		}
		if s := e.ep.State(); s != transport.StateClosed {
			c.Errorf("closed, and in state %d", s)
		}
	}
}

func (c *carrierTest) closeRegions() {
	for _, m := range c.memories {
		if m.region == nil { // of a transport that is gone
			continue
		}
		for range 2 {
			if err := m.region.Close(); err != nil {
				c.Errorf("close of a region that nobody uses: %v", err)
			}
		}
	}
}

func (c *carrierTest) closeTransports() {
	for at, t := range c.transports {
		if c.gone[at] {
			continue
		}
		for range 2 {
			if err := t.Close(); err != nil {
				c.Errorf("close of a transport that holds nothing: %v", err)
			}
		}
	}
}
