package verbs

import "errors"

// A group may have begun something that it cannot end, because the device refuses to. The
// group still owns it, and ends it before it begins the next of its kind, and with
// itself. So there is never more than one of a kind.

// abandon ends a region that is not registered with every open port.
func (g *Group) abandon(r *groupRegion) error {
	g.abandoned = r
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
