package multihost

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// reconnect lets survivors and joiners meet; joiners' hosts are in hosts.
func (g *troupe) reconnect(survivors rankset.Set, hosts map[int]string) (changes []*Change, joined []*Domain, err error) {
	listeners := make([]*Listener, len(g.domains))
	for r := range listeners {
		var e error
		switch h := hosts[r]; {
		case survivors.Has(r):
			listeners[r], e = Relist(g.domains[r], []byte("again"))
		case h != "":
			c := g.configs[r]
			c.Host = h
			listeners[r], e = Open(c)
		}
		require.NoError(g.t, e)
	}
	all := metadataOf(listeners)
	changes, joined = make([]*Change, len(listeners)), make([]*Domain, len(listeners))
	errs := make([]error, len(listeners))
	var wg sync.WaitGroup
	for r, l := range listeners {
		if l == nil {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			if survivors.Has(r) {
				changes[r], errs[r] = l.Reconnect(all, testTimeout)
			} else {
				joined[r], errs[r] = l.Connect(all, testTimeout)
			}
		}()
	}
	wg.Wait()
	return changes, joined, errors.Join(errs...)
}

// begin commits, and installs the epoch as core/ep/cpu does.
func (g *troupe) begin(epoch membership.Epoch, changes []*Change, joined []*Domain) {
	for r, c := range changes {
		if c != nil {
			require.NoError(g.t, c.Commit())
		} else if joined[r] != nil {
			g.domains[r] = joined[r]
		}
	}
	for r, d := range g.domains {
		if changes[r] != nil || joined[r] != nil {
			require.True(g.t, membership.Install(d.Members(), epoch, d.Present()))
		}
	}
}

// TestUpdate: survivors, a new process on a host of its own, one that joins
// survivors' host, one that stays away and comes back; local memory stays where
// it is, remote ranks get new links, and each epoch's set is its own.
func TestUpdate(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b", "b"}, nil)
	g.exchange("first")
	address := g.domains[0].Control(1).Word(0)
	require.True(t, membership.Leave(g.domains[3].Members(), 1, 3))
	g.everySet(rankset.Upto(3), rankset.Upto(3))
	require.NoError(t, g.domains[3].Close())
	g.domains[3] = nil

	changes, joined, err := g.reconnect(rankset.Upto(3), map[int]string{3: "c"})
	require.NoError(t, err)
	require.Equal(t, rankset.Of(3), changes[0].Fresh())
	require.Equal(t, rankset.Upto(4), changes[0].Present())
	require.Equal(t, uint64(1)<<membership.EpochShift|0b0111, g.domains[0].Members().Load(), "nothing changes before Commit")
	g.exchangeAmong(rankset.Upto(3))
	g.begin(2, changes, joined)
	g.everySet(rankset.Upto(4), rankset.Upto(4))
	require.Same(t, address, g.domains[0].Control(1).Word(0))
	require.Equal(t, rankset.Of(2, 3), g.domains[0].Remote().Ranks())
	g.exchange("second")
	require.True(t, membership.Leave(g.domains[1].Members(), 2, 1))
	g.everySet(rankset.Upto(4), rankset.Of(0, 2, 3))

	changes, joined, err = g.reconnect(rankset.Of(0, 3), nil) // 1 and 2 stay away
	require.NoError(t, err)
	g.begin(3, changes, joined)
	g.everySet(rankset.Of(0, 3), rankset.Of(0, 3))
	g.exchangeAmong(rankset.Of(0, 3))
	require.Equal(t, rankset.Of(3), g.domains[0].Remote().Ranks())

	changes, joined, err = g.reconnect(rankset.Upto(4), nil) // and come back
	require.NoError(t, err)
	g.begin(4, changes, joined)
	g.everySet(rankset.Upto(4), rankset.Upto(4))
	g.exchange("third")
}

// TestPagesOfAHostAreUnited: a rendezvous that no earlier rank of a host comes to makes
// another members page there. A rank that comes back later takes that of the others over,
// or they its; not before Commit, and not after Abort.
func TestPagesOfAHostAreUnited(t *testing.T) {
	for _, absent := range []int{0, 1} {
		t.Run(fmt.Sprint("rank ", absent, " is absent"), func(t *testing.T) {
			g := newTroupe(t, []string{"a", "a", "b"}, nil)
			comes := 1 - absent
			require.NoError(t, g.domains[comes].Close())
			changes, joined, err := g.reconnect(rankset.Of(2), map[int]string{comes: "a"})
			require.NoError(t, err)
			g.begin(2, changes, joined)
			old := g.domains[absent].GroupID()
			for _, abort := range []bool{true, false} {
				changes, joined, err = g.reconnect(rankset.Upto(3), nil)
				require.NoError(t, err)
				if abort {
					for _, c := range changes {
						c.Abort()
					}
				}
				require.Equal(t, old, g.domains[absent].GroupID())
			}
			g.begin(3, changes, joined)
			g.everySet(rankset.Upto(3), rankset.Upto(3))
			require.True(t, membership.Leave(g.domains[0].Members(), 3, 0))
			require.Equal(t, uint64(3)<<membership.EpochShift|0b110, g.domains[1].Members().Load(), "one page again")
			require.Equal(t, g.domains[0].GroupID(), g.domains[1].GroupID())
		})
	}
}

// TestAbort: a rendezvous that is given up changes nothing.
func TestAbort(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b"}, nil)
	for range 3 {
		changes, _, err := g.reconnect(rankset.Upto(3), nil)
		require.NoError(t, err)
		for _, c := range changes {
			c.Abort()
			c.Abort()
			require.Error(t, c.Commit())
		}
		g.exchange("still")
	}
	changes, _, err := g.reconnect(rankset.Upto(3), nil)
	require.NoError(t, err)
	require.NoError(t, changes[0].Commit())
	require.Error(t, changes[0].Commit())
	// The others close with their changes open.
}

// TestMissing: a rank that does not come, or closes meanwhile, is named.
func TestMissing(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "b"}, nil)
	listeners := make([]*Listener, 3)
	for r := range listeners {
		var err error
		listeners[r], err = Relist(g.domains[r], nil)
		require.NoError(t, err)
	}
	all := metadataOf(listeners)
	_, err := listeners[0].Reconnect(all, 300*time.Millisecond)
	require.ErrorContains(t, err, "rank 1, rank 2 did not come")
	failed := make(chan error, 1)
	go func() { _, err := listeners[1].Reconnect(all, testTimeout); failed <- err }()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, listeners[1].Close())
	require.Error(t, <-failed)
	require.NoError(t, listeners[2].Close())
	g.exchange("still")
}

// TestCloseDuringRendezvous: a domain that is closed ends the rendezvous that it is
// in.
func TestCloseDuringRendezvous(t *testing.T) {
	for delay := range 8 {
		if testing.Short() && delay%3 != 0 {
			continue
		}
		g := newTroupe(t, []string{"a", "b", "b"}, nil)
		listeners := make([]*Listener, 3)
		for r := range listeners {
			var err error
			listeners[r], err = Relist(g.domains[r], nil)
			require.NoError(t, err)
		}
		all := metadataOf(listeners)
		errs := make(chan error, 2)
		for r := range 2 { // the last one never comes
			go func() { _, err := listeners[r].Reconnect(all, time.Second); errs <- err }()
		}
		time.Sleep(time.Duration(delay) * 3 * time.Millisecond)
		require.NoError(t, g.domains[0].Close())
		require.Error(t, <-errs)
		require.Error(t, <-errs)
		require.NoError(t, listeners[2].Close())
		g.close()
	}
}

// TestCommitWhileClosing: a domain that closes ends what a Commit beside it
// has put in, or the Commit fails.
func TestCommitWhileClosing(t *testing.T) {
	for range 20 {
		g := newTroupe(t, []string{"a", "b"}, nil)
		changes, _, err := g.reconnect(rankset.Of(0, 1), nil)
		require.NoError(t, err)
		v := changes[0].view
		closed := make(chan error, 1)
		go func() { closed <- g.domains[0].Close() }()
		_ = changes[0].Commit()
		require.NoError(t, <-closed)
		require.Zero(t, v.controls.Load().Ranks(), "its connections are open")
		g.close()
	}
}

// waiting is a carrier with endpoints that say that they connect, and then wait for their
// end, or go on.
type waiting struct {
	transport.Transport
	begun   chan struct{}
	forever bool
}

func (w *waiting) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	ep, err := w.Transport.NewEndpoint(spec)
	return &waitingEndpoint{Endpoint: ep, w: w, retired: make(chan struct{})}, err
}

type waitingEndpoint struct {
	transport.Endpoint
	w       *waiting
	once    sync.Once
	retired chan struct{}
}

func (e *waitingEndpoint) Connect(remote []byte, deadline time.Time) error {
	close(e.w.begun)
	if e.w.forever {
		select {
		case <-e.retired:
		case <-time.After(time.Until(deadline)):
			return os.ErrDeadlineExceeded
		}
	}
	return e.Endpoint.Connect(remote, deadline)
}

func (e *waitingEndpoint) Retire() error {
	e.once.Do(func() { close(e.retired) })
	return e.Endpoint.Retire()
}

// TestCloseWhileConnecting: a rank that gives up while links connect ends that at once,
// on both sides, and not at the deadline.
func TestCloseWhileConnecting(t *testing.T) {
	for closer := range 2 {
		keys, all := wire.GenerateKeyring(), make([][]byte, 2)
		listeners, carriers := make([]*Listener, 2), make([]*waiting, 2)
		for r, host := range []string{"a", "b"} {
			w := &waiting{begun: make(chan struct{}), forever: r == 1}
			c := testConfig(keys, r, 2, host)
			open := c.Carriers[0].Open
			c.Carriers[0].Open = func(turn int) (t transport.Transport, err error) {
				w.Transport, err = open(turn)
				return w, err
			}
			var err error
			listeners[r], err = Open(c)
			require.NoError(t, err)
			carriers[r], all[r] = w, listeners[r].Metadata()
		}
		errs := [2]chan error{make(chan error, 1), make(chan error, 1)}
		for r, l := range listeners {
			go func() { _, err := l.Connect(all, 3*time.Second); errs[r] <- err }()
		}
		<-carriers[0].begun
		<-carriers[1].begun
		require.NoError(t, listeners[closer].Close())
		require.ErrorIs(t, <-errs[closer], transport.ErrClosed)
		err := <-errs[1-closer] // the reason, or the end of the link, whichever comes first
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, listeners[1-closer].Close())
	}
}

// TestBadMetadata: nothing that is not right is taken, and the field is named.
func TestBadMetadata(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, nil)
	own, err := Relist(g.domains[0], nil)
	require.NoError(t, err)
	defer own.Close()
	other := func(change func(c *Config)) []byte {
		c := g.configs[1]
		change(&c)
		l, err := Open(c)
		require.NoError(t, err)
		defer l.Close()
		return l.Metadata()
	}
	good := other(func(*Config) {})
	for _, c := range []struct {
		metadata []byte
		want     string
	}{
		{other(func(c *Config) { c.Setting = TCP }), "transport is tcp, on rank 0 it is auto"},
		{other(func(c *Config) { c.Bound = 2 * time.Second }), "unresponsiveness timeout"},
		{other(func(c *Config) { c.Shm.ABIVersion++ }), "ABI version"},
		{other(func(c *Config) { c.Shm.NumRanks++ }), "number of ranks"},
		{other(func(c *Config) { c.Shm.ControlBytes += 8 }), "control region"},
		{other(func(c *Config) { c.Shm.Rank = 0 }), "is the metadata of rank 0"},
		{append(good, 0), "1 trailing bytes"},
		{good[:len(good)-1], "truncated"},
		{[]byte("x"), "truncated"},
	} {
		_, err := own.Reconnect([][]byte{own.Metadata(), c.metadata}, time.Second)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "rank 1")
	}
	for i := range good {
		altered := append([]byte(nil), good...)
		altered[i] ^= 1
		_, err := ParseMetadata(altered)
		require.ErrorIs(t, err, domain.ErrMetadata, "byte %d", i)
	}
	_, err = own.Reconnect([][]byte{own.Metadata()}, time.Second)
	require.ErrorIs(t, err, transport.ErrMismatch)
	_, err = own.Reconnect([][]byte{good, good}, time.Second)
	require.Error(t, err)
}

func FuzzMetadata(f *testing.F) {
	f.Add([]byte(metadataFormat.Magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		i, err := ParseMetadata(b)
		if err == nil {
			require.Equal(t, b, i.marshal())
		}
	})
}

// TestLeftOut: a rank that has not come to the rendezvous that begins the next epoch
// learns that this one is over, on hosts that no rank has come from, too. If too few
// ranks come, they end nothing for the others.
func TestLeftOut(t *testing.T) {
	for _, c := range []struct{ come, goOn rankset.Set }{{rankset.Of(0, 1), rankset.Set{}}, {rankset.Of(0, 2, 3), rankset.Set{}}, {rankset.Of(0), rankset.Of(1, 2, 3)}} {
		t.Run(fmt.Sprintf("%v come", c.come), func(t *testing.T) {
			g := newTroupe(t, []string{"a", "b", "c", "c"}, nil)
			for r := range c.come.All() {
				require.True(t, membership.Leave(g.domains[r].Members(), 1, r))
			}
			g.everySet(rankset.Upto(4), rankset.Upto(4).Minus(c.come))
			changes, joined, err := g.reconnect(c.come, nil)
			require.NoError(t, err)
			g.begin(2, changes, joined)
			g.everySet(c.come, c.come)
			g.everySet(rankset.Upto(4).Minus(c.come), c.goOn)
		})
	}
}
