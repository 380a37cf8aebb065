package multihost

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// Setting says what may carry bytes between ranks. It is equal on all ranks.
type Setting uint8

// The settings. Only Auto chooses: shared memory where there is any, else the
// first carrier that both ranks have. The others fail where they cannot be.
const (
	Auto Setting = iota
	Shm          // shared memory alone
	TCP          // sockets alone, between ranks of one host, too
	RDMA         // verbs between hosts, shared memory inside
	numSettings
)

var settingNames = [...]string{"auto", "shm", "tcp", "rdma"}

// Each setting has a name.
const _ = uint(len(settingNames) - int(numSettings))

func (s Setting) String() string {
	if s < numSettings {
		return settingNames[s]
	}
	return fmt.Sprintf("Setting(%d)", uint8(s))
}

// Carrier is one way to reach remote ranks.
type Carrier struct {
	// Setting that asks for it: TCP or RDMA.
	Setting Setting
	// Open begins to use it. It is called when there are remote ranks, once per
	// domain at most. turn is how many ranks of this host have a lower number,
	// so that they can share its devices out. The domain closes what it returns.
	Open func(turn int) (transport.Transport, error)
}

// Config says what Open makes.
type Config struct {
	// Shm is the part of it that lies in shared memory, with rank and number
	// of ranks of the whole group.
	Shm shm.Config
	// Setting is equal on all ranks.
	Setting Setting
	// Carriers by preference. Needed where there are remote ranks.
	Carriers []Carrier
	// Keys are shared by all ranks. Needed where there are remote ranks.
	Keys *wire.Keyring
	// Protection of what control connections carry: offers with the keys of
	// regions, names of carriers, addresses, words. 0 is wire.ProtectDigest.
	// Equal on all ranks.
	Protection wire.Protection
	// Counters count refused bytes on control connections, if not nil.
	Counters *wire.Counters
	// Listen is the address by which ranks of other hosts reach this one; port
	// 0 lets the system choose. Needed where there are remote ranks.
	Listen netip.AddrPort
	// Link bounds what a link holds; equal on all ranks. Zeros: defaults.
	Link link.Config
	// Rings, if not nil, makes the memory in which messages over a carrier are put
	// together and arrive: for a caller that has a device fill and read them. The domain
	// releases it, when it is closed at the latest.
	Rings func(carrier transport.Transport, sizeBytes int64) (domain.Segment, error)
	// Heartbeat is how often ranks tell one another that they are there, and
	// Bound how long one may be unresponsive; both have a default. Bound is equal on
	// all ranks.
	Heartbeat, Bound time.Duration
	// ReconnectFor is how long a link that broke may take until it carries again;
	// after that it has failed. Default: Bound, but at most 10 s.
	ReconnectFor time.Duration
	// Words are the offsets of words of the control region that remote ranks see
	// a copy of, at most one Heartbeat old. Moments are those that hold a time
	// of Clock, or 0: in the copy it is a time of the reader's Clock.
	Words, Moments []int64
	// Clock tells the time of Moments in nanoseconds. It is CLOCK_MONOTONIC
	// unless a test gives another one: that starts with the host, so hosts
	// differ by any amount.
	Clock func() int64
	// Report, if not nil, is called every Heartbeat, on one goroutine. It is given this
	// rank's control region and what is seen of all remote ranks; and nothing once the
	// rank has none any more.
	Report func(own domain.Segment, remote []RemoteRank)
	// FellBack, if not nil, is called when the link to a rank has gone over to another
	// carrier in use: once per link, on some goroutine. It does not wait. Of a link that did
	// so before Connect has returned, or Commit, only Paths says it.
	FellBack func(path Path)
	// Host, if not empty, is taken for the host's identity: ranks with
	// different ones are remote. For tests.
	Host string
}

// Defaults and bounds. Every rank writes to every other one each heartbeat, so
// in groups of more than 8 ranks the default is longer in proportion.
const (
	DefaultHeartbeat = 20 * time.Millisecond
	DefaultBound     = time.Second
	maxReconnectFor  = 10 * time.Second // by default
	maxWords         = 64

	// The rings of all remote ranks together have so much at most by default, but
	// each has minDefaultRing.
	maxDefaultRings = 512 << 20
	minDefaultRing  = 1 << 20
)

// setDefaults fills in what is not given.
func (c *Config) setDefaults() {
	if c.Link.RingBytes == 0 {
		c.Link.RingBytes = link.DefaultRingBytes
		for c.Link.RingBytes > minDefaultRing && 2*c.Link.RingBytes*int64(c.Shm.NumRanks) > maxDefaultRings {
			c.Link.RingBytes /= 2
		}
	}
	if c.Link.NumMessages == 0 {
		c.Link.NumMessages = link.DefaultNumMessages
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = max(DefaultHeartbeat, DefaultHeartbeat*time.Duration(c.Shm.NumRanks)/8)
	}
	if c.Bound == 0 {
		c.Bound = DefaultBound
	}
	if c.Protection == 0 {
		c.Protection = wire.ProtectDigest
	}
	if c.Clock == nil {
		c.Clock = monotonic
	}
	if c.ReconnectFor == 0 {
		c.ReconnectFor = min(c.Bound, maxReconnectFor)
	}
}

// check refuses what cannot be. The defaults are set.
func (c *Config) check() error {
	switch {
	case c.Protection != wire.ProtectDigest && c.Protection != wire.ProtectEncrypt:
		return fmt.Errorf("protection %v does not exist", c.Protection)
	case c.Setting >= numSettings:
		return fmt.Errorf("setting %v does not exist", c.Setting)
	case c.Heartbeat < time.Millisecond || c.Bound < 4*c.Heartbeat || c.Bound > time.Hour:
		return fmt.Errorf("heartbeat %v and bound %v: 1ms and more, and from 4 heartbeats to an hour are possible", c.Heartbeat, c.Bound)
	case len(c.Words)+len(c.Moments) > maxWords:
		return fmt.Errorf("%d words to be copied, at most %d are possible", len(c.Words)+len(c.Moments), maxWords)
	}
	for _, w := range append(append([]int64(nil), c.Words...), c.Moments...) {
		if w < 0 || w%8 != 0 || w > c.Shm.ControlBytes-8 {
			return fmt.Errorf("word at %d of a control region of %d bytes", w, c.Shm.ControlBytes)
		}
	}
	return c.Link.Check()
}

// monotonic is CLOCK_MONOTONIC in nanoseconds.
func monotonic() int64 {
	now, _ := sys.Monotonic() // no Linux is without this clock
	return now
}

// reachable says what is missing for remote ranks.
func (c *Config) reachable() error {
	switch {
	case c.Keys == nil:
		return errors.New("no keys are configured")
	case !c.Listen.IsValid():
		return errors.New("no address is configured")
	case len(c.Carriers) == 0:
		return errors.New("no carrier is configured")
	}
	return nil
}
