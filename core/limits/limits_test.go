package limits_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/fabric"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/node"
	"github.com/moewire/moewire/core/transport/fake"
	"github.com/moewire/moewire/core/transport/tcp"
)

// hint asks for the size of a shape that differs from a small one.
func hint(change func(s *layout.Shape, v int64)) func(*testing.T, int64) error {
	return func(_ *testing.T, v int64) error {
		s := layout.Shape{MaxTokens: 1, Hidden: 8, NumExperts: 1, NumRanks: 1}
		change(&s, v)
		_, err := node.SizeHint(s, 1)
		return err
	}
}

// create makes a rank's part of a buffer.
func create(change func(c *node.Config, v int64)) func(*testing.T, int64) error {
	return func(t *testing.T, v int64) error {
		c := node.Config{NumRanks: 1}
		change(&c, v)
		b, err := node.New(c)
		if err == nil {
			require.NoError(t, b.Close())
		}
		return err
	}
}

// dispatch begins a dispatch without memory. What the number allows is refused for that.
func dispatch(change func(a *ep.DispatchArgs, v int64)) func(*testing.T, int64) error {
	return func(t *testing.T, v int64) error {
		b, err := node.New(node.Config{NumRanks: 1})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		require.NoError(t, b.Connect([][]byte{b.Metadata()}, time.Minute))
		a := ep.DispatchArgs{Hidden: 8, TopK: 1, MaxTokens: 1, NumExperts: 1, Timeout: -1}
		change(&a, v)
		_, err = b.Dispatch(&a, new(node.Result), ep.PhaseDone, -1)
		require.Error(t, err)
		return err
	}
}

// expand asks for the size of an expanded layout.
func expand(t *testing.T, v int64) error {
	b, err := node.New(node.Config{NumRanks: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	require.NoError(t, b.Connect([][]byte{b.Metadata()}, time.Minute))
	r, _, err := b.MakeRouting(&routing.Args{NumTokens: 1, TopK: 1, NumExperts: 1, TopkIdx: []int64{0}, Timeout: -1}, -1)
	require.NoError(t, err)
	_, err = r.NumExpandedRows(int(v))
	return err
}

func onCUDA(change func(c *cuda.Config, v int64)) func(*testing.T, int64) error {
	return func(_ *testing.T, v int64) error {
		c := cuda.Config{Config: ep.Config{NumBytes: 1 << 40}}
		change(&c, v)
		_, err := c.Params(ep.Standing{})
		return err
	}
}

func openFabric(change func(c *fabric.Config, v int64)) func(*testing.T, int64) error {
	return func(t *testing.T, v int64) error {
		c := fabric.Config{Transport: fake.New(fake.Config{}).Transport()}
		change(&c, v)
		f, err := fabric.Open(c)
		if err == nil {
			require.NoError(t, f.Close(time.Now().Add(time.Minute)))
		}
		return err
	}
}

// entrances are the calls of the Go API that check a number by the table.
var entrances = map[string]func(t *testing.T, v int64) error{
	"num_ranks": create(func(c *node.Config, v int64) { c.NumRanks = int(v) }),
	"num_slots": func(_ *testing.T, v int64) error {
		_, err := node.SizeHint(layout.Shape{MaxTokens: 1, Hidden: 8, NumExperts: 1, NumRanks: 1}, int(v))
		return err
	},
	"num_slots on CUDA": onCUDA(func(c *cuda.Config, v int64) { c.NumSlots = int(v) }),
	"num_bytes": func(_ *testing.T, v int64) error {
		_, err := cpu.Params(ep.Config{NumBytes: v}, ep.Standing{})
		return err
	},
	"num_max_tokens_per_rank": hint(func(s *layout.Shape, v int64) { s.MaxTokens = v }),
	"num_tokens":              dispatch(func(a *ep.DispatchArgs, v int64) { a.NumTokens, a.MaxTokens = int(v), math.MaxInt32 }),
	"hidden":                  hint(func(s *layout.Shape, v int64) { s.Hidden = v }),
	"num_topk":                dispatch(func(a *ep.DispatchArgs, v int64) { a.TopK = int(v) }),
	"num_experts":             hint(func(s *layout.Shape, v int64) { s.NumExperts, s.NumRanks = v, limits.NumRanks.Most }),
	"num_experts per rank":    hint(func(s *layout.Shape, v int64) { s.NumExperts = v }),
	"num_tokens * num_topk": dispatch(func(a *ep.DispatchArgs, v int64) {
		a.MaxTokens, a.TopK = math.MaxInt32, 2-int(v%2) // an even number is of two selections per token
		a.NumTokens = int(v) / a.TopK
	}),
	"extra_row_bytes":  dispatch(func(a *ep.DispatchArgs, v int64) { a.Flat, a.ExtraRowBytes[0] = true, int(v) }),
	"expert_alignment": expand,
	"max_selections":   onCUDA(func(c *cuda.Config, v int64) { c.MaxSelections = int(v) }),
	"max_experts":      onCUDA(func(c *cuda.Config, v int64) { c.MaxExperts = int(v) }),

	"num_threads": create(func(c *node.Config, v int64) { c.Kernels = kernels.Options{Threads: int(v)} }),
	"prefetch":    create(func(c *node.Config, v int64) { c.Kernels = kernels.Options{Prefetch: int(v)} }),
	"spin_us":     create(func(c *node.Config, v int64) { c.SpinFor = time.Duration(v) * time.Microsecond }),
	"ring_bytes":  create(func(c *node.Config, v int64) { c.Hosts.RingBytes = v }),
	"unresponsive_after_us": create(func(c *node.Config, v int64) {
		c.Hosts.UnresponsiveAfter = time.Duration(v) * time.Microsecond
	}),

	"num_peers":     openFabric(func(c *fabric.Config, v int64) { c.NumPeers = int(v) }),
	"num_transfers": openFabric(func(c *fabric.Config, v int64) { c.NumTransfers = int(v) }),
	"num_regions":   openFabric(func(c *fabric.Config, v int64) { c.NumRegions = int(v) }),
	"num_unmatched": openFabric(func(c *fabric.Config, v int64) { c.NumUnmatched = int(v) }),
	"num_sockets": func(_ *testing.T, v int64) error {
		_, err := tcp.Open(tcp.Config{NumSockets: int(v)})
		return err
	},
}

// elsewhere are rows that Go has no use for, and why.
var elsewhere = map[string]string{
	"vector_width":       "package cpu knows which widths this machine has",
	"slow_after_us":      "a Duration",
	"device_ordinal":     "the driver knows how many there are",
	"timeout_us":         "a Duration",
	"num_connections":    "the carrier has a bound",
	"send_depth":         "the carrier has a bound",
	"recv_depth":         "the carrier has a bound",
	"slice_bytes":        "the carrier has a bound",
	"connect_timeout_us": "a Duration",
}

// says is what an error calls a number, and the number that is given, where they are not those
// of the table.
var says = map[string][2]string{
	"num_bytes":             {"num_ep_buffer_bytes", ""},
	"num_experts per rank":  {"num_experts is", ""},
	"num_tokens":            {"x has 2147483648 tokens", ""},
	"num_tokens * num_topk": {"topk_idx", "[1073741824, 2]"},
	"extra_row_bytes":       {"extra[0]", ""},
	"num_sockets":           {"NumSockets", ""},
}

// next is the smallest number above a row that only the row refuses.
func next(row limits.Range) int64 {
	switch row.Name {
	case limits.Hidden.Name:
		return row.Most + protocol.RowMultiple
	case limits.RingBytes.Name:
		return 2 * row.Most // a power of two
	}
	return row.Most + 1
}

// TestLimits: the Go API allows the largest number of each row and refuses the next one. It says
// the number's name, what is given, and what is allowed.
func TestLimits(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range limits.All {
		require.False(t, seen[row.Name], row.Name)
		seen[row.Name] = true
		if elsewhere[row.Name] != "" {
			require.NotContains(t, entrances, row.Name)
			continue
		}
		t.Run(row.Name, func(t *testing.T) {
			enter := entrances[row.Name]
			require.NotNil(t, enter, "no call of the Go API was named")
			if err := enter(t, row.Most); err != nil {
				require.NotContains(t, err.Error(), "allowed")
			}
			err := enter(t, next(row))
			require.Error(t, err)
			name, given := row.Name, strconv.FormatInt(next(row), 10)
			if other := says[row.Name]; other[0] != "" {
				name = other[0]
				if other[1] != "" {
					given = other[1]
				}
			}
			text := err.Error()
			before, allowed, found := strings.Cut(text, "allowed")
			require.True(t, found, text)
			require.Contains(t, before, name)
			require.Contains(t, before, given)
			require.Contains(t, allowed, strconv.FormatInt(row.Most, 10))
		})
	}
	require.Len(t, seen, len(entrances)+len(elsewhere), "a call is named for a row that is not there")
}

func TestRange(t *testing.T) {
	r := limits.Range{Name: "n", Least: -1, Most: 4}
	for v := int64(-1); v <= 4; v++ {
		require.NoError(t, r.Check(v))
	}
	require.EqualError(t, r.Check(-2), "n is -2, allowed -1 to 4")
	require.EqualError(t, r.CheckAs("config->n", 5), "config->n is 5, allowed -1 to 4")
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = limits.TopK.Check(protocol.MaxTopK) }))
}
