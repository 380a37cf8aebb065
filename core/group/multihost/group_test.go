package multihost

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/transport/transporttest"
	"github.com/moewire/moewire/core/wire"
)

const testTimeout = 30 * time.Second

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// The words of a test's control region: two are copied, one is a moment.
const (
	wordOff   = 64
	momentOff = 128
)

func tcpCarrier(keys *wire.Keyring) Carrier {
	return Carrier{Setting: TCP, Open: func(int) (transport.Transport, error) {
		return tcp.Open(tcp.Config{Listen: []netip.AddrPort{loopback}, Keyring: keys})
	}}
}

func testConfig(keys *wire.Keyring, rank, ranks int, host string) Config {
	return Config{
		Shm:      shm.Config{Rank: rank, NumRanks: ranks, ControlBytes: 4096 + 8, ABIVersion: 7, Params: []byte("p")},
		Carriers: []Carrier{tcpCarrier(keys)}, Keys: keys, Listen: loopback, Host: host,
		Link:  link.Config{RingBytes: 1 << 16, NumMessages: 8},
		Words: []int64{wordOff}, Moments: []int64{momentOff},
	}
}

// troupe is ranks of one process that stand for ranks of several hosts.
type troupe struct {
	t       testing.TB
	configs []Config
	domains []*Domain
}

// newTroupe connects a rank per entry: the name of its host, "": absent.
func newTroupe(t testing.TB, hosts []string, change func(rank int, c *Config)) *troupe {
	keys := wire.GenerateKeyring()
	g := &troupe{t: t, domains: make([]*Domain, len(hosts))}
	listeners := make([]*Listener, len(hosts))
	for r, h := range hosts {
		c := testConfig(keys, r, len(hosts), h)
		if change != nil {
			change(r, &c)
		}
		g.configs = append(g.configs, c)
		if h != "" {
			var err error
			listeners[r], err = Open(c)
			require.NoError(t, err)
		}
	}
	errs := g.connect(listeners)
	require.NoError(t, errors.Join(errs...))
	t.Cleanup(g.close)
	return g
}

func metadataOf(listeners []*Listener) [][]byte {
	all := make([][]byte, len(listeners))
	for r, l := range listeners {
		if l != nil {
			all[r] = l.Metadata()
		}
	}
	return all
}

// connect lets fresh listeners meet.
func (g *troupe) connect(listeners []*Listener) []error {
	all, errs := metadataOf(listeners), make([]error, len(listeners))
	var wg sync.WaitGroup
	for r, l := range listeners {
		if l == nil {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			g.domains[r], errs[r] = l.Connect(all, testTimeout)
		}()
	}
	wg.Wait()
	return errs
}

func (g *troupe) close() {
	var wg sync.WaitGroup
	for _, d := range g.domains {
		if d == nil {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := d.Close(); err != nil {
				g.t.Error(err)
			}
		}()
	}
	wg.Wait()
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for begin := time.Now(); !f(); time.Sleep(time.Millisecond) {
		if time.Since(begin) > testTimeout {
			t.Fatal("still not: ", what)
		}
	}
}

// send is Reserve and Post, when there is room.
func send(t testing.TB, d *Domain, to int, text string) {
	eventually(t, "room", func() bool {
		b, err := d.Remote().Reserve(to, int64(len(text)))
		if err == nil {
			copy(b, text)
			require.NoError(t, d.Remote().Post(to, int64(len(text))))
			return true
		}
		require.ErrorIs(t, err, transport.ErrWouldBlock)
		return false
	})
}

func receive(t testing.TB, d *Domain, from int) (text string) {
	eventually(t, "a message", func() bool {
		m := d.Remote().Next(from)
		text = string(m)
		return m != nil
	})
	d.Remote().Release(from)
	return text
}

// exchange lets every rank hear from every remote one.
func (g *troupe) exchange(round string) {
	for r, d := range g.domains {
		if d != nil && d.Remote() != nil {
			for to := range d.Remote().Ranks().All() {
				send(g.t, d, to, fmt.Sprint(round, r))
			}
		}
	}
	for _, d := range g.domains {
		if d != nil && d.Remote() != nil {
			for from := range d.Remote().Ranks().All() {
				require.Equal(g.t, fmt.Sprint(round, from), receive(g.t, d, from))
			}
		}
	}
}

func domainsOf(t *testing.T, hosts []string, controlBytes int64) []domain.Domain {
	g := newTroupe(t, hosts, func(_ int, c *Config) { c.Shm.ControlBytes = controlBytes })
	domains := make([]domain.Domain, len(hosts))
	for r, d := range g.domains {
		if d != nil {
			domains[r] = d
		}
	}
	return domains
}

func hostsOf(present rankset.Set, n int) []string {
	hosts := make([]string, n)
	for r := range present.All() {
		hosts[r] = "one"
	}
	return hosts
}

// TestConformance: where every rank is local, a multihost domain is one of shared memory.
func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{
		New: func(t *testing.T, n int, controlBytes int64) []domain.Domain {
			return domainsOf(t, hostsOf(rankset.Upto(n), n), controlBytes)
		},
		NewPartial: func(t *testing.T, present rankset.Set, n int, controlBytes int64) []domain.Domain {
			return domainsOf(t, hostsOf(present, n), controlBytes)
		},
	})
}

func holdings() string {
	for range 500 { // goroutines may still be ending
		if runtime.NumGoroutine() <= 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	return fmt.Sprintf("%d descriptors, %d goroutines, %+v", len(fds), runtime.NumGoroutine(), sys.Stats())
}

// TestNothingIsLeft: of two hosts with two ranks, nor of a rendezvous that fails; and
// where every rank is local there is no goroutine of this package at all.
func TestNothingIsLeft(t *testing.T) {
	newTroupe(t, []string{"a", "b"}, nil).close()
	before := holdings()
	g := newTroupe(t, []string{"a", "a", "b", "b"}, nil)
	g.exchange("x")
	g.close()
	require.Equal(t, before, holdings())
	lone := newTroupe(t, []string{"a", "a"}, nil)
	require.Nil(t, lone.domains[0].Remote())
	eventually(t, "only this test's goroutine and the main one", func() bool { return runtime.NumGoroutine() == 2 })
	lone.close()

	keys := wire.GenerateKeyring()
	a, err := Open(testConfig(keys, 0, 2, "a"))
	require.NoError(t, err)
	b, err := Open(testConfig(keys, 1, 2, "b"))
	require.NoError(t, err)
	all := metadataOf([]*Listener{a, b})
	require.NoError(t, b.Close())
	_, err = a.Connect(all, 300*time.Millisecond)
	require.Error(t, err)
	require.Equal(t, before, holdings())
}

// TestTwoHosts: shared memory inside, messages between.
func TestTwoHosts(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "a", "b"}, nil)
	for round := range 20 {
		g.exchange(fmt.Sprint(round, " of "))
	}
	for r, d := range g.domains {
		local, remote := rankset.FromWord(uint64(0b0101)<<(r&1)), rankset.FromWord(uint64(0b1010)>>(r&1))
		require.Equal(t, rankset.Upto(4), d.Present())
		require.Equal(t, remote, d.Remote().Ranks())
		require.Equal(t, uint64(1)<<membership.EpochShift|0b1111, d.Members().Load())
		for o := range local.All() {
			require.NotNil(t, d.Control(o))
			id, slab, err := g.domains[o].AddSlab(4096)
			require.NoError(t, err)
			slab.Word(0).Store(uint64(100*r + o))
			seen, err := d.Slab(o, id)
			require.NoError(t, err)
			require.Equal(t, uint64(100*r+o), seen.Word(0).Load())
		}
		for o := range remote.All() {
			_, err := d.Slab(o, 0)
			require.ErrorIs(t, err, errRemote)
			require.NoError(t, d.Process(o).Lost())
			require.False(t, d.Process(o).Dying())
			require.Equal(t, "tcp", d.Paths()[o].Carrier)
			require.Contains(t, d.Paths()[o].Why, "another host")
		}
	}
}

// TestWords: remote ranks see copies of the words, moments by their own clock,
// whenever a host's clock began.
func TestWords(t *testing.T) {
	const month = 30 * 24 * time.Hour
	for _, ahead := range []time.Duration{0, month, -month} {
		t.Run(ahead.String(), func(t *testing.T) {
			clocks := [2]func() int64{monotonic, func() int64 { return monotonic() + int64(ahead) }}
			g := newTroupe(t, []string{"a", "b"}, func(rank int, c *Config) { c.Clock = clocks[rank] })
			for from, to := range [2]int{1, 0} {
				own, copied := g.domains[from].Control(from), g.domains[to].Control(from)
				age := 3 * time.Second
				own.Word(wordOff).Store(42)
				own.Word(momentOff).Store(uint64(clocks[from]() - int64(age)))
				begun := time.Now()
				own.Word(256).Store(7)
				eventually(t, "copied", func() bool { return copied.Word(wordOff).Load() == 42 && copied.Word(momentOff).Load() != 0 })
				seen := time.Duration(clocks[to]() - int64(copied.Word(momentOff).Load()))
				require.InDelta(t, age, seen, float64(time.Since(begun)))
				require.Zero(t, copied.Word(256).Load(), "no other word is")
			}
		})
	}
}

// TestSettings: what each setting makes of a pair, local or remote.
func TestSettings(t *testing.T) {
	for _, c := range []struct {
		setting Setting
		hosts   []string
		carrier string
		errText string
	}{
		{Auto, []string{"a", "a"}, "shm", ""},
		{Auto, []string{"a", "b"}, "tcp", ""},
		{Shm, []string{"a", "a"}, "shm", ""},
		{Shm, []string{"a", "b"}, "", "another host, and transport is shm"},
		{TCP, []string{"a", "a"}, "tcp", ""},
		{TCP, []string{"a", "b"}, "tcp", ""},
		{RDMA, []string{"a", "a"}, "shm", ""},
		{RDMA, []string{"a", "b"}, "", "no carrier works for transport rdma: rdma: there is no device"},
	} {
		t.Run(fmt.Sprint(c.setting, c.hosts), func(t *testing.T) {
			keys := wire.GenerateKeyring()
			listeners := make([]*Listener, 2)
			for r := range listeners {
				cfg := testConfig(keys, r, 2, c.hosts[r])
				cfg.Setting = c.setting
				cfg.Carriers = append([]Carrier{{Setting: RDMA, Open: func(int) (transport.Transport, error) {
					return nil, errors.New("there is no device")
				}}}, cfg.Carriers...)
				var err error
				listeners[r], err = Open(cfg)
				require.NoError(t, err)
				defer listeners[r].Close()
			}
			g := &troupe{t: t, domains: make([]*Domain, 2)}
			errs := g.connect(listeners)
			defer g.close()
			if c.errText != "" {
				require.ErrorContains(t, errors.Join(errs...), c.errText)
				return
			}
			require.NoError(t, errors.Join(errs...))
			path := g.domains[0].Paths()[1]
			require.Equal(t, c.carrier, path.Carrier)
			if c.setting == Auto && c.carrier == "tcp" {
				require.Contains(t, path.Why, "there is no device", "a fallback says so")
			}
			g.exchange("over " + c.carrier)
		})
	}
}
