package ep_test

import (
	"testing"

	"github.com/moewire/moewire/core/transport/inproc"
)

// spreads are the ways in which groups are put on hosts.
var spreads = []struct {
	name string
	of   func(ranks int) inproc.Hosts
}{
	{"apart", func(n int) inproc.Hosts {
		return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r })}
	}},
	{"pairs", func(n int) inproc.Hosts {
		return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r / 2 }), NumMessages: 2, MaxMessageBytes: 2 << 10, MaxDelay: 3, DelaySeed: 5}
	}},
	{"one away", func(n int) inproc.Hosts {
		return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r / (n - 1) }), NumMessages: 1, MaxMessageBytes: 1 << 10}
	}},
}

func hostsOf(n int, of func(rank int) int) []int {
	hosts := make([]int, n)
	for r := range hosts {
		if n > 1 {
			hosts[r] = of(r)
		}
	}
	return hosts
}

// TestFar runs what holds for every group on groups over several hosts.
func TestFar(t *testing.T) {
	for _, spread := range spreads {
		t.Run(spread.name, func(t *testing.T) {
			overHosts = spread.of
			t.Cleanup(func() { overHosts = nil })
			for _, one := range farTests {
				t.Run(one.name, one.f)
			}
		})
	}
}

var farTests = []struct {
	name string
	f    func(*testing.T)
}{
	{"Exchange", TestExchange},
	{"FlatExchange", TestFlatExchange},
	{"DeterministicOrder", TestDeterministicOrder},
	{"WideExchange", TestWideExchange},
	{"Interleavings", TestInterleavings},
	{"SameBitsForEveryR", TestSameBitsForEveryR},
}
