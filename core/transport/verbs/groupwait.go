package verbs

import (
	"errors"
	"slices"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// Poll takes completions of all open ports, in turns.
func (g *Group) Poll(done []transport.Completion) (n int, err error) {
	open := 0
	for i := range g.members {
		t := g.members[(g.next+i)%len(g.members)].tr.Load()
		if t == nil {
			continue
		}
		k, pollErr := t.Poll(done[n:])
		n += k
		if errors.Is(pollErr, transport.ErrClosed) {
			continue
		}
		open++
		if pollErr != nil {
			t.loseDevice(t.Device() + ": " + pollErr.Error())
		}
	}
	g.next = (g.next + 1) % len(g.members)
	if open == 0 && g.closed.Load() {
		return n, transport.ErrClosed
	}
	return n, nil
}

// PollEvents gives reports of all open ports. A port that goes down ends its endpoints,
// each of which is reported. That counts as the end of the device only if no other port
// works. NewEndpoint finds out whether a port works that would have to be opened first,
// so NewEndpoint reports when none is left.
func (g *Group) PollEvents(into []transport.Event) (n int) {
	lost := false
	g.each(func(t *Transport) {
		from := n
		n += t.PollEvents(into[n:])
		lost = lost || slices.ContainsFunc(into[from:n], isDown)
	})
	if lost && !g.allLost() {
		for i := range into[:n] {
			if isDown(into[i]) {
				into[i].Kind = transport.EventOther
			}
		}
	}
	if n < len(into) && g.stranded.Load() != nil {
		if why := g.stranded.Swap(nil); why != nil && g.allDown() {
			into[n] = transport.Event{Kind: transport.EventDeviceDown, Detail: *why}
			n++
		}
	}
	return n
}

func isDown(e transport.Event) bool { return e.Kind == transport.EventDeviceDown }

// allLost is whether all ports were down at one moment, and none is left. Ports
// are read one after the other: one may have come, unread, before another went.
func (g *Group) allLost() bool {
	for range maxLooks {
		before := g.changes()
		g.takeEvents()
		switch {
		case !g.allDown() || g.anyLeft():
			return false
		case g.changes() == before:
			return true
		}
	}
	return false // NewEndpoint looks again
}

// strand makes PollEvents report that no port is usable, unless one is by then.
func (g *Group) strand(why string) {
	g.stranded.Store(&why)
	g.Wake()
}

// takeEvents takes everything off all open ports, and wakes the goroutine that passes it
// on: a Wait under way may not see any more that there was something.
func (g *Group) takeEvents() {
	g.each(func(t *Transport) { t.takeEvents() })
	g.Wake()
}

// changes counts what has changed at each open port. If it stays the same while
// all are read and then found down, they were so at one moment.
func (g *Group) changes() (num [maxNICs]uint64) {
	for i, m := range g.members {
		if t := m.tr.Load(); t != nil {
			num[i] = t.events.changes.Load()
		}
	}
	return num
}

// anyLeft is whether there is a port that might be opened, or opened again.
func (g *Group) anyLeft() bool {
	for _, m := range g.members {
		if t := m.tr.Load(); t == nil || t.fatal.Load() && t.isIdle() {
			return true
		}
	}
	return false
}

func (g *Group) allDown() bool {
	down := true
	g.each(func(t *Transport) { down = down && t.down.Load() })
	return down
}

// Wake ends a Wait.
func (g *Group) Wake() {
	g.each(func(t *Transport) { t.Wake() })
	select {
	case g.bell <- struct{}{}:
	default:
	}
}

// Wait blocks until one of the open ports may have something.
func (g *Group) Wait(d time.Duration) error {
	g.waiting.Lock()
	defer g.waiting.Unlock()
	if g.closed.Load() {
		return transport.ErrClosed
	}
	var open [maxNICs]*Transport
	num := 0
	g.each(func(t *Transport) { open[num] = t; num++ })
	switch {
	case num == 0: // the last one was lost: a caller that wants an endpoint opens one
		return g.waitForBell(d)
	case num > 1:
		return g.waitForAll(open[:num], d)
	}
	return g.survive(open[0], open[0].Wait(d))
}

// waitForBell waits while no port is open. The bell rings when one was opened, or when
// all ends.
func (g *Group) waitForBell(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-g.bell:
	case <-timer.C:
	}
	return nil
}

// survive makes a failed Wait the loss of that port, not of all: what is open
// goes on, and the port is opened again when it is wanted.
func (g *Group) survive(t *Transport, err error) error {
	switch {
	case errors.Is(err, transport.ErrClosed):
		if g.closed.Load() {
			return err
		}
		return nil // it was lost, and discarded
	case err != nil:
		t.loseDevice(t.Device() + ": " + err.Error())
	}
	return nil
}

// waitForAll holds the locks of all Waits. A port that is being closed is left
// alone: Close wants its lock.
func (g *Group) waitForAll(open []*Transport, d time.Duration) error {
	num := 0
	for _, t := range open {
		t.wait.mu.Lock()
		if t.wait.closed.Load() {
			t.wait.mu.Unlock()
			continue
		}
		open[num] = t
		num++
	}
	open = open[:num]
	defer func() {
		for _, t := range open {
			t.wait.mu.Unlock()
		}
	}()
	if num == 0 {
		return nil // all were lost, and are being opened again
	}
	for _, t := range open {
		ready, err := t.beginWait()
		if ready || err != nil {
			return g.survive(t, err)
		}
	}
	if _, err := g.sleeper.Wait(d); err != nil {
		return err
	}
	for _, t := range open {
		if err := t.lookAround(); err != nil {
			return g.survive(t, err)
		}
	}
	return nil
}
