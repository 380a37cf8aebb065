package multihost

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

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
