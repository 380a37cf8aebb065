package multihost

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/link"
)

// carriers are those that a domain may use for remote ranks. It finds out once which
// work.
type carriers struct {
	cfg  *Config
	ring func()

	mu      sync.Mutex // guards what follows
	opened  bool
	pollers []*link.Poller // by preference
	failed  []string       // which do not work, and why
	latched int            // so many of the pollers have failed since and are left out
	fallen  [rankset.MaxRanks]fallen
}

// identity names the process and memory behind a rank.
type identity = [16]byte

// fallen is what a pair has found useless. It stays so while the remote rank has the same
// process, so that no link changes its carrier to and fro.
type fallen struct {
	with  identity
	names []string
	why   []string
}

// without leaves the carriers out that were useless with a rank, but never all.
func (c *carriers) without(rank int, id identity, names []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &c.fallen[rank]
	if f.with != id {
		*f = fallen{with: id}
	}
	if left := without(names, f.names); len(left) > 0 {
		return left
	}
	return names
}

// latchPair keeps what a rendezvous has found useless with a rank.
func (c *carriers) latchPair(rank int, id identity, useless, why []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := &c.fallen[rank]; f.with == id {
		f.names, f.why = append(f.names, useless...), append(f.why, why...)
	}
}

// fallback reports whether a carrier is left out for a rank, and why for it alone.
func (c *carriers) fallback(rank int) (fell bool, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &c.fallen[rank]
	return c.latched > 0 || len(f.names) > 0, strings.Join(f.why, "; ")
}

// open tries what the setting allows. Auto falls back: a carrier that does not work is
// left out. The other settings do not fall back.
func (c *carriers) open(turn int) (names []string, failed string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.opened {
		if err := c.tryAll(turn); err != nil {
			return nil, "", err
		}
		c.opened = true
	}
	c.latch()
	for _, p := range c.pollers[c.latched:] {
		names = append(names, p.Carrier().Name())
	}
	return names, strings.Join(c.failed, "; "), nil
}

// latch leaves a carrier out for good when its device has failed as a whole: a device
// that comes and goes would break all links each time. The last carrier stays: a rank
// that has named one has no other.
func (c *carriers) latch() {
	for c.latched < len(c.pollers)-1 {
		err := c.pollers[c.latched].Failed()
		if err == nil {
			return
		}
		c.failed = append(c.failed, fmt.Sprintf("%v, and it is not used any more", err))
		c.latched++
	}
}

func (c *carriers) tryAll(turn int) error {
	var errs []error
	for _, k := range c.cfg.Carriers {
		if c.cfg.Setting != Auto && c.cfg.Setting != k.Setting {
			continue
		}
		t, err := k.Open(turn)
		if err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", k.Setting, err))
			continue
		}
		c.pollers = append(c.pollers, link.NewPoller(t, c.ring))
	}
	if len(c.pollers) == 0 {
		return fmt.Errorf("no carrier works for transport %v: %w", c.cfg.Setting, errors.Join(append(errs, errNoCarrier)...))
	}
	for _, err := range errs {
		c.failed = append(c.failed, err.Error())
	}
	return nil
}

var errNoCarrier = errors.New("none is left to try")

func (c *carriers) poller(name string) *link.Poller {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pollers {
		if p.Carrier().Name() == name {
			return p
		}
	}
	return nil
}

// close ends all that were opened; no link uses them any more.
func (c *carriers) close() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pollers {
		err = errors.Join(err, p.Close())
	}
	return err
}

// choose is the carrier of a pair: the first in the lower rank's order that
// the other one has, too. "" if there is none.
func choose(lower, higher []string) string {
	for _, name := range lower {
		if slices.Contains(higher, name) {
			return name
		}
	}
	return ""
}
