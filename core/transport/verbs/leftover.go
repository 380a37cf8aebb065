package verbs

import (
	"errors"
	"time"
)

// A group may have begun something that it cannot end, because the device refuses to. The
// group still owns it, and ends it before it begins the next of its kind, and with
// itself. So there is never more than one of a kind. Since that next one may never come,
// the group also tries every sweepEvery.

const sweepEvery = 5 * time.Second

// sweepLater has the sweeper look at what could not be ended. The caller holds changing.
func (g *Group) sweepLater() {
	if g.hasRests() {
		g.sweeper.Begin()
	}
}

// sweep ends what it can, and reports whether nothing is left.
func (g *Group) sweep() bool {
	g.changing.Lock()
	defer g.changing.Unlock()
	_ = g.endRests() // later again
	return !g.hasRests()
}

func (g *Group) hasRests() bool {
	for _, m := range g.members {
		if m.leftover != nil {
			return true
		}
	}
	return g.abandoned != nil
}

// abandon ends a region that is not registered with every open port.
func (g *Group) abandon(r *groupRegion) error {
	g.abandoned = r
	defer g.sweepLater()
	return g.endAbandoned()
}

func (g *Group) endAbandoned() error {
	if g.abandoned == nil {
		return nil
	}
	if err := g.abandoned.leaveAll(); err != nil {
		return err
	}
	g.abandoned = nil
	return nil
}

// endLeftover closes what was opened of a port that is not used.
func (g *Group) endLeftover(m *member) (err error) {
	t := m.leftover
	if t == nil {
		return nil
	}
	for r := range g.regions {
		err = errors.Join(err, r.leave(m.index))
	}
	err = errors.Join(err, t.Close())
	if t.closed.Load() {
		m.leftover = nil
	}
	return err
}

// endRests ends all of it.
func (g *Group) endRests() error {
	err := g.endAbandoned()
	for _, m := range g.members {
		err = errors.Join(err, g.endLeftover(m))
	}
	return err
}

// Close closes all ports.
func (g *Group) Close() error {
	err := g.close()
	if g.closed.Load() {
		g.sweeper.Stop()
	}
	return err
}
