package endpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// Config says how a store works. Zero values get the defaults named here.
type Config struct {
	Transport transport.Transport
	// Spec is for every endpoint.
	Spec transport.EndpointSpec
	// Cap is how many queue pairs there may be.
	Cap int
	// MaxPeers bounds the peers that are remembered (1024). At the bound, the peer that
	// was without a connection for longest is forgotten.
	MaxPeers int
	// Policy chooses the connection to evict.
	Policy Policy
	// Epoch is this process's life: larger than that of any former one.
	Epoch uint64
	// Send carries a handshake to a peer. It must not block; a handshake may be lost.
	// Send and Changed are called by one goroutine at a time, without a lock,
	// and no longer once Close has returned nil.
	Send func(Peer, Handshake)
	// Prepare is called for each endpoint before it is connected, to post its
	// first receives. May be nil.
	Prepare func(Ref) error
	// Changed is called when a connection has become live or has ceased to be
	// (why is not nil), in that order. It must not wait for the store. May be nil.
	Changed func(p Peer, r Ref, why error)
	// NumTasks bounds the calls into the transport that may block at a time (8):
	// so many connects, and so many others.
	NumTasks int
	// ConnectFor bounds the making of a connection (10 s). DrainFor bounds the wait for
	// outstanding completions before quarantine (30 s). RetryAfter is the pause after a
	// failure (100 ms), ResendAfter that between handshakes (50 ms).
	ConnectFor, DrainFor, RetryAfter, ResendAfter time.Duration
	// QuarantineCap is how many connections may be in quarantine before the
	// store makes no more (Cap / 4, at least 1).
	QuarantineCap int
	// Now is the clock; time.Now.
	Now func() time.Time
}

func (c *Config) check() error {
	switch {
	case c.Transport == nil || c.Send == nil:
		return errors.New("endpoint: transport and send must be given")
	case c.Cap < 1 || c.Cap > 1<<20:
		return fmt.Errorf("endpoint: cap %d, allowed 1 to 2^20", c.Cap)
	case c.Policy > FIFO:
		return fmt.Errorf("endpoint: %s, allowed sieve and fifo", c.Policy)
	case c.Epoch == 0:
		return errors.New("endpoint: epoch 0, allowed 1 and more")
	}
	atLeast(&c.MaxPeers, 1024)
	atLeast(&c.NumTasks, 8)
	atLeast(&c.QuarantineCap, max(c.Cap/4, 1))
	atLeast(&c.ConnectFor, 10*time.Second)
	atLeast(&c.DrainFor, 30*time.Second)
	atLeast(&c.RetryAfter, 100*time.Millisecond)
	atLeast(&c.ResendAfter, 50*time.Millisecond)
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// atLeast fills in a default.
func atLeast[T int | time.Duration](v *T, otherwise T) {
	if *v <= 0 {
		*v = otherwise
	}
}
