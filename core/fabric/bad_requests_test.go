package fabric

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestBadRequests: each names what was given and what is allowed, and nothing
// has happened.
func TestBadRequests(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.SliceBytes, c.SendDepth = 10, 4 })
	defer w.close(t)
	w.connect(t)
	f := w.fabs[0]
	_, id, _ := memory(t, f, 100)
	at := transport.RemoteRegion{SizeBytes: 100, Key: 1}
	for _, c := range []struct {
		name string
		r    Request
		err  error
		text string
	}{
		{"no kind", Request{}, ErrInvalid, "kind is 0, allowed 1 to 6"},
		{"a kind that is none", Request{Kind: 7}, ErrInvalid, "kind is 7"},
		{"no such region", Request{Kind: Write, Region: 99, Bytes: 1, Remote: at}, ErrRegion, "99"},
		{"bytes without a region", Request{Kind: Write, Bytes: 1, Remote: at}, ErrInvalid, "1 bytes at 0, the region has 0"},
		{"beyond the region", Request{Kind: Write, Region: id, Off: 70, Bytes: 31, Remote: at}, ErrInvalid, "31 bytes at 70, the region has 100"},
		{"negative offset", Request{Kind: Write, Region: id, Off: -1, Bytes: 1, Remote: at}, ErrInvalid, "1 bytes at -1"},
		{"sums that go round", Request{Kind: Write, Region: id, Off: 1, Bytes: 1<<63 - 1, Remote: at}, ErrInvalid, "the region has 100"},
		{"beyond the peer's", Request{Kind: Read, Region: id, Bytes: 20, Remote: at, RemoteOff: 90}, ErrInvalid, "of the peer's region, which has 100"},
		{"negative there", Request{Kind: Read, Region: id, Bytes: 20, Remote: at, RemoteOff: -1}, ErrInvalid, "20 bytes at -1 of the peer's"},
		{"too many slices", Request{Kind: Read, Region: id, Bytes: 41, Remote: at}, ErrInvalid, "41 bytes are 5 slices, at most 4"},
		{"memory for a number", Request{Kind: ReceiveImm, Region: id}, ErrInvalid, "has none"},
	} {
		c.r.Peer = 1
		_, err := f.Post(&c.r)
		require.ErrorIs(t, err, c.err, c.name)
		require.ErrorContains(t, err, c.text, c.name)
	}
	require.Zero(t, f.table.Stats().InUse)
	require.Zero(t, f.Stats().Outstanding)
	for name, cfg := range map[string]Config{
		"Transport must be given": {},
		"num_peers is -1":         {NumPeers: -1},
		"num_transfers is 65536":  {NumTransfers: 1 << 16},
		"send_depth is 5000":      {SendDepth: 5000},
		"Mode is 2":               {Mode: 2},
		"ConnectFor is -1s":       {ConnectFor: -time.Second},
		"slice_bytes is -4":       {SliceBytes: -4},
	} {
		if name != "Transport must be given" {
			cfg.Transport = w.devs[0]
		}
		_, err := Open(cfg)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, name)
	}
}
