package fake_test

import (
	"os"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
	"github.com/moewire/moewire/core/transport/transporttest"
)

func TestConformance(t *testing.T) {
	for name, cfg := range map[string]fake.Config{
		"any order":    {},
		"ordered":      {Ordered: true},
		"flow control": {NoReceiveTimeout: -1},
		"chunks":       {ChunkBytes: 1000},
		"no inline":    {Limits: transport.Limits{InlineBytes: -1}},
		"late":         {Late: fake.LateUntilStatus},
		"few":          {Limits: transport.Limits{NumEndpoints: 40, SendDepth: 16, RecvDepth: 16, NumPieces: 1, InlineBytes: 8, MaxRequestBytes: 1 << 20}},
	} {
		if testing.Short() && name != "any order" && name != "few" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			transporttest.RunTransport(t, harness(cfg))
		})
	}
}

func harness(cfg fake.Config) transporttest.TransportHarness {
	return transporttest.TransportHarness{
		New: func(t testing.TB, n int) []transport.Transport {
			cfg.Seed = testenv.Seed(t)
			cfg.RetryTimeout = 200 * time.Millisecond // on a machine that is busy, less is soon over
			if cfg.NoReceiveTimeout == 0 {
				cfg.NoReceiveTimeout = cfg.RetryTimeout
			}
			network := fake.New(cfg)
			list := make([]transport.Transport, n)
			for i := range list {
				list[i] = network.Transport()
			}
			return list
		},
		Kill: func(_ testing.TB, killed transport.Transport) {
			fake.Kill(killed)
		},
		Timeout: testTimeout(),
		// Under the race detector, and in chunks, more takes long.
		MaxRequestBytes: 2 << 20,
		FlowControl:     cfg.NoReceiveTimeout < 0,
	}
}

// testTimeout is short where the suite is expected to fail: TestMutations.
func testTimeout() time.Duration {
	d, _ := time.ParseDuration(os.Getenv("MOEWIRE_FAKE_TIMEOUT"))
	return d
}
