package verbs

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// groupRegion is memory that is registered on every open port of a group.
type groupRegion struct {
	owner    *Group
	mem      []byte  // nil: a device's
	fd       *sys.FD // of a dma-buf, else nil
	register func(t *Transport) (*region, error)
	on       [maxNICs]atomic.Pointer[region]
	closed   bool // under Group.changing
}

// Register makes memory usable on every open port, and those to come.
func (g *Group) Register(mem []byte, access transport.Access) (transport.Region, error) {
	return g.add(&groupRegion{owner: g, mem: mem, register: func(t *Transport) (*region, error) {
		return t.register(mem, access)
	}})
}

func (g *Group) add(r *groupRegion) (transport.Region, error) {
	g.changing.Lock()
	defer g.changing.Unlock()
	if g.closed.Load() {
		return nil, transport.ErrClosed
	}
	if err := g.endAbandoned(); err != nil {
		return nil, err
	}
	for _, m := range g.members {
		if t := m.tr.Load(); t != nil && !t.fatal.Load() {
			if err := r.enter(m.index, t); err != nil {
				return nil, errors.Join(err, g.abandon(r))
			}
		}
	}
	g.regions[r] = struct{}{}
	return r, nil
}

// registerAll makes every region usable on a port that is about to open.
func (g *Group) registerAll(t *Transport) error {
	for r := range g.regions {
		if err := r.enter(int(t.member), t); err != nil {
			return err
		}
	}
	return nil
}

func (r *groupRegion) enter(index int, t *Transport) error {
	one, err := r.register(t)
	if err == nil {
		r.on[index].Store(one)
	}
	return err
}

// leave ends the registration on one port.
func (r *groupRegion) leave(index int) error {
	one := r.on[index].Load()
	if one == nil {
		return nil
	}
	err := one.Close()
	if err == nil {
		r.on[index].Store(nil)
	}
	return err
}

func (r *groupRegion) leaveAll() (err error) {
	for i := range r.on {
		err = errors.Join(err, r.leave(i))
	}
	return err
}

// Bytes is the memory.
func (r *groupRegion) Bytes() []byte { return r.mem }

// Remote is what a peer needs if its connection is on the port that new endpoints get.
func (r *groupRegion) Remote() transport.RemoteRegion {
	if t := r.owner.preferred(); t != nil {
		return r.remoteOn(int(t.member))
	}
	return transport.RemoteRegion{}
}

// RemoteFor is what the peer of an endpoint needs.
func (r *groupRegion) RemoteFor(e transport.Endpoint) transport.RemoteRegion {
	if e, ok := e.(*endpoint); ok {
		return r.remoteOn(int(e.owner.member))
	}
	return r.Remote()
}

func (r *groupRegion) remoteOn(index int) transport.RemoteRegion {
	if one := r.on[index].Load(); one != nil {
		return one.Remote()
	}
	return transport.RemoteRegion{}
}

// Close ends all registrations, or none.
func (r *groupRegion) Close() error {
	g := r.owner
	g.changing.Lock()
	defer g.changing.Unlock()
	if r.closed {
		return nil
	}
	if err := r.seal(); err != nil {
		return err
	}
	if err := r.leaveAll(); err != nil {
		return err
	}
	r.closed = true
	delete(g.regions, r)
	if r.fd != nil {
		return r.fd.Close()
	}
	return nil
}

// seal refuses requests that name the region, unless there are some.
func (r *groupRegion) seal() error {
	for i := range r.on {
		if one := r.on[i].Load(); one != nil && !one.seal() {
			for j := range i {
				if other := r.on[j].Load(); other != nil {
					other.unseal()
				}
			}
			return fmt.Errorf("close region: %w", transport.ErrBusy)
		}
	}
	return nil
}
