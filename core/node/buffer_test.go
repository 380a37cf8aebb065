package node

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/op"
)

// newPair makes two ranks of this process that treat each other as ranks of other hosts.
func newPair(t *testing.T) (pair [2]*Buffer) {
	for r := range pair {
		var err error
		pair[r], err = New(Config{Rank: r, NumRanks: 2, Hosts: Hosts{
			Host: fmt.Sprint("host ", r), Listen: "127.0.0.1", Keys: localKeys,
		}})
		require.NoError(t, err)
	}
	return pair
}

// TestTwoHosts: ranks of two hosts exchange rows, replace one another, and go on.
func TestTwoHosts(t *testing.T) {
	pair := newPair(t)
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	for epoch := membership.Epoch(1); epoch <= 2; epoch++ {
		paths, err := pair[0].Paths()
		require.NoError(t, err)
		require.Equal(t, "tcp", paths[1].Carrier)
		exchangeOne(t, pair)
		ranks, now, _, err := pair[1].Membership()
		require.NoError(t, err)
		require.EqualValues(t, 3, ranks.Word())
		require.Equal(t, epoch, now)
		if epoch == 1 {
			require.NoError(t, pair[1].Close())
			pair[1] = newPair(t)[1]
			require.NoError(t, pair[0].Update())
			require.Equal(t, [2]error{}, connectPair(pair, soon))
			installPair(t, pair)
		}
	}
	s, err := pair[0].Stats()
	require.NoError(t, err)
	require.Len(t, s.Remote.Links, 1)
	require.NotZero(t, s.Remote.Links[0].SentMessages)
	require.NoError(t, pair[0].Close())
	require.NoError(t, pair[1].Close())
}

// exchangeOne sends one token of each rank to the expert of the other one, in two phases:
// each rank in a goroutine, because between hosts a dispatch is sent once both have begun it.
func exchangeOne(t *testing.T, pair [2]*Buffer) {
	counts := both(t, func(r int) (rows int32, err error) {
		b, rowsOf := pair[r], make([]int32, 1)
		var res Result
		o, err := b.Dispatch(&ep.DispatchArgs{
			X: make([]byte, 2*8), TopkIdx: []int64{int64(1 - r)}, NumTokens: 1, Hidden: 8, TopK: 1, MaxTokens: 1, NumExperts: 2,
			RecvCount: rowsOf, LayoutRange: make([]int64, 2), Timeout: soon,
		}, &res, ep.PhaseSent, -1)
		if o.Pending() && err == nil { // otherwise the rows of the other rank had come before
			err = errors.Join(o.Wait(ep.PhaseDone, -1), o.Result(&res))
			if o.State() != op.Done || !o.HasResults() {
				err = errors.Join(err, errors.New("it waited and has not ended"))
			}
			o.Close()
		}
		return rowsOf[0], errors.Join(err, b.Release(res.Handle, Stream{}))
	})
	require.Equal(t, [2]int32{1, 1}, counts)
}

// TestNoCalls: what a buffer answers before it is connected and after it is closed. On the
// CPU it has no streams.
func TestNoCalls(t *testing.T) {
	b, err := New(Config{NumRanks: 1, Name: "the buffer"})
	require.NoError(t, err)
	calls := func() []error {
		var res Result
		_, dispatched := b.Dispatch(&ep.DispatchArgs{}, &res, ep.PhaseDone, -1)
		_, combined := b.Combine(1, &ep.CombineArgs{}, ep.PhaseDone, -1)
		_, _, sized := b.CombineBytes(1)
		_, asked := b.CombineBuffer(1, Stream{}, -1)
		_, observed := b.Stats()
		return []error{dispatched, combined, sized, asked, b.Release(1, Stream{}), observed}
	}
	for _, err := range calls() {
		require.EqualError(t, err, "invalid argument: the buffer is not connected yet: connect it first")
	}
	_, _, _, err = b.Membership()
	require.ErrorContains(t, err, "not connected yet")
	require.ErrorContains(t, b.Install(), "the buffer has no rendezvous to install")
	require.NoError(t, b.Connect([][]byte{b.Metadata()}, soon))
	require.ErrorContains(t, b.Connect([][]byte{b.Metadata()}, soon), "the buffer was connected before")
	require.ErrorIs(t, b.Release(1, OnStream(0)), ErrNoStreams)
	_, err = b.CombineBuffer(1, OnStream(0), -1)
	require.ErrorIs(t, err, ErrNoStreams)
	require.NoError(t, b.Close())
	for _, err := range calls() {
		require.ErrorIs(t, err, ep.ErrClosed)
	}
	require.ErrorIs(t, b.Update(), ep.ErrClosed)
}

// TestBadConfig: an error names the field.
func TestBadConfig(t *testing.T) {
	for text, change := range map[string]func(*Config){
		"num_ranks is 0, allowed 1 to ":                  func(c *Config) { c.NumRanks = 0 },
		"rank is 1, allowed 0 to 0":                      func(c *Config) { c.Rank = 1 },
		"spin_us is 2000000, allowed -1 to 1000000":      func(c *Config) { c.SpinFor = 2 * time.Second },
		"prefetch is 65, allowed -1 to 64":               func(c *Config) { c.Kernels = kernels.Options{Prefetch: 65} },
		"huge_pages is 3, allowed 0 (never)":             func(c *Config) { c.Pages.Huge = 3 },
		"ring_bytes is 5, allowed a power of two":        func(c *Config) { c.Hosts.RingBytes = 5 },
		"unresponsive_after_us is 1, allowed 0":          func(c *Config) { c.Hosts.UnresponsiveAfter = time.Microsecond },
		"unresponsive_after_us is -1, allowed 0":         func(c *Config) { c.Hosts.UnresponsiveAfter = -1 },
		`listen is "nowhere"`:                            func(c *Config) { c.Hosts.Listen = "nowhere" },
		`listen is "0.0.0.0", allowed an address of one`: func(c *Config) { c.Hosts.Listen = "0.0.0.0" },
		"rdma_gid is ":                     func(c *Config) { c.Hosts.RDMA.GID = "v9" },
		"keys and key_file are both given": func(c *Config) { c.Hosts.Keys, c.Hosts.KeyFile = localKeys, "f" },
		"keys: ":                           func(c *Config) { c.Hosts.Keys = []byte("x") },
		"key_file: ":                       func(c *Config) { c.Hosts.KeyFile = "/nowhere" },
	} {
		cfg := Config{NumRanks: 1}
		change(&cfg)
		_, err := New(cfg)
		require.ErrorIs(t, err, ep.ErrInvalid, text)
		require.ErrorContains(t, err, "invalid argument: "+text)
		require.IsType(t, new(FieldError), err, text)
	}
}

// TestResultIsOfThisDispatch: a Result that is used again does not show the handle of the
// dispatch before, when this one is refused.
func TestResultIsOfThisDispatch(t *testing.T) {
	b, err := New(Config{NumRanks: 1})
	require.NoError(t, err)
	require.NoError(t, b.Connect([][]byte{b.Metadata()}, soon))
	args := ep.DispatchArgs{
		X: make([]byte, 2*8), TopkIdx: []int64{0}, NumTokens: 1, Hidden: 8, TopK: 1, MaxTokens: 1, NumExperts: 1,
		RecvCount: make([]int32, 1), LayoutRange: make([]int64, 1), Timeout: soon,
	}
	var res Result
	_, err = b.Dispatch(&args, &res, ep.PhaseDone, -1)
	require.NoError(t, err)
	require.NotZero(t, res.Handle)
	require.NoError(t, b.Release(res.Handle, Stream{}))
	args.Hidden = 0
	_, err = b.Dispatch(&args, &res, ep.PhaseDone, -1)
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.Zero(t, res.Handle)
	require.Nil(t, res.Memory)
	require.NoError(t, b.Close())
}

// TestCloseDuringConnect: a connect that waits for another rank ends when the buffer is
// closed.
func TestCloseDuringConnect(t *testing.T) {
	pair := newPair(t)
	metadata := [][]byte{pair[0].Metadata(), pair[1].Metadata()}
	ended := make(chan error, 1)
	go func() { ended <- pair[0].Connect(metadata, time.Hour) }()
	time.Sleep(20 * time.Millisecond) // mostly it waits by then; if not, it must end all the same
	require.NoError(t, pair[0].Close())
	require.ErrorIs(t, <-ended, ep.ErrClosed)
	require.NoError(t, pair[1].Close())
}
