package shm

import (
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// Fresh are the ranks that bring memory which this domain has not
// known: it is another process, or another domain of one.
func (c *Change) Fresh() (ranks rankset.Set) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for r, p := range c.peers {
		if p != nil && p.member != nil {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// Reconnect is ReconnectWith for a group of this host alone.
func (l *Listener) Reconnect(all [][]byte, deadline time.Duration) (*Change, error) {
	return l.ReconnectWith(all, false, deadline)
}
