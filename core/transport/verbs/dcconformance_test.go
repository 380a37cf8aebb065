package verbs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/transporttest"
)

// dcSkips are what the suite does not ask of the fake. The fake's functions are
// Go: calling them allocates.
var (
	fakeSkips = map[string]string{
		"Vanish":           "a process has to end for that",
		"AllocatesNothing": "the fake library's functions do: TestInitiatorAllocatesNothing is of the calls",
	}
	dcSkips = map[string]string{
		"Vanish":           fakeSkips["Vanish"],
		"AllocatesNothing": fakeSkips["AllocatesNothing"],
		"ConnectUnresponsivePeer": "a target has no number before it answers: who sends too early is told " +
			"StatusNoReceive, which TestDCUnresponsivePeer is of",
	}
)

// TestDCConformance runs the suite for carriers over DC, on a library whose
// queue pairs carry bytes. None of it says anything about a device.
func TestDCConformance(t *testing.T) {
	for name, config := range map[string]Config{
		"several initiators": {DC: true}, "one initiator": {DC: true, NumDCIs: 1},
	} {
		t.Run(name, func(t *testing.T) { assert.Positive(t, testOnFake(t, config, nil, dcSkips, 3)) })
	}
	t.Run("one side has none", func(t *testing.T) {
		assert.Zero(t, testOnFake(t, Config{DC: true}, func(i int, c *Config) { c.DC = i%4 == 0 }, fakeSkips, 2))
	})
	t.Run("off", func(t *testing.T) { assert.Zero(t, testOnFake(t, Config{}, nil, fakeSkips, 2)) })
}

// ending is a transport that says when it was closed: the suite closes its
// transports after everything else.
type ending struct {
	transport.Transport
	end func()
}

func (e *ending) Close() error {
	err := e.Transport.Close()
	if err == nil && e.end != nil {
		e.end()
		e.end = nil
	}
	return err
}

// testOnFake opens each transport on a device of its own; change may say
// something else for one of them. It returns how many requests went by DC.
func testOnFake(t *testing.T, config Config, change func(i int, c *Config), skips map[string]string, numSkips int) (sent int) {
	withMlx5(t)
	config.SendDepth, config.RecvDepth = 64, 64
	transporttest.RunTransport(t, transporttest.TransportHarness{
		New: func(t testing.TB, n int) (all []transport.Transport) {
			f := makeFakes(t.(*testing.T), n)
			left := n
			f.moves = true
			f.impatient = strings.HasSuffix(t.Name(), "/NoReceive") || strings.HasSuffix(t.Name(), "/ConnectUnresponsivePeer")
			for i := range n {
				c := config
				c.Device, c.NumEndpoints = f.devices[i].name, 70
				if change != nil {
					change(i, &c)
				}
				tr, err := f.tryOpen(c)
				require.NoError(t, err)
				all = append(all, &ending{Transport: tr, end: func() {
					if left--; left == 0 {
						sent += len(f.sent)
						f.end()
					}
				}})
			}
			return all
		},
		Memory:          anonymous,
		MaxRequestBytes: 1 << 20,
		Timeout:         testTimeout,
		Skips:           skips,
		NumSkips:        numSkips,
	})
	return sent
}
