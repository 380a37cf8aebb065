package cpu_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/internal/testenv"
)

// atCable is a group with its first ranks, half of them or more, at one end of
// a cable, and the others at the other.
func atCable(t *testing.T, cable *testenv.Cable, setting multihost.Setting, hosts string) groupSpec {
	t.Helper()
	end := func(rank int) int { return 2 * rank / len(hosts) }
	spec := groupSpec{Hosts: hosts, Setting: setting, Deterministic: true, Seed: testenv.Seed(t), Killed: -1}
	for rank := range hosts {
		spec.Addresses = append(spec.Addresses, cable.Addresses[end(rank)])
		if setting == multihost.RDMA {
			spec.Devices = append(spec.Devices, cable.Devices[end(rank)])
		}
	}
	spec.command = func(rank int, words ...string) []string { return cable.Command(end(rank), words...) }
	return spec
}

// seenOf is what netem has done to packets, by name.
func seenOf(c *testenv.Cable) map[string]int {
	return map[string]int{"lost": c.NumDropped(), "out of order": c.NumOutOfOrder(), "doubled": c.NumDoubled()}
}

// TestWeather: a network that loses, doubles, delays and reorders packets, also
// those of the rendezvous, changes no bit of what a calm one gives. No rank is
// taken for dead. A network that loses all packets counts as cut. The kernel's counters
// show that packets were lost, doubled and late.
func TestWeather(t *testing.T) {
	needDevice(t) // only that machine is for such networks
	oneHost := groupSpec{Hosts: "aa", Setting: multihost.Shm, Deterministic: true, Seed: testenv.Seed(t), Killed: -1}
	outs, bits := playGroup(t, oneHost, func() {})
	for _, sort := range []struct {
		setting multihost.Setting
		cable   func(testing.TB) *testenv.Cable
		late    string // so many packets are not late
		hosts   string // of those that are cut off from one another
		away    []int
	}{
		// Sockets, with each end in a namespace of its own; soft-RoCE devices.
		{multihost.TCP, testenv.NewCable, "25%", "abc", []int{2}},
		{multihost.RDMA, testenv.NewDeviceCable, "95%", "ab", []int{1}},
	} {
		t.Run(sort.setting.String(), func(t *testing.T) {
			cable := sort.cable(t)
			for _, weather := range []struct {
				name, what string
				seen       []string
			}{
				{"loss", "loss 4%", []string{"lost"}},
				{"storm", "delay 2ms 1ms duplicate 5% loss 1% reorder " + sort.late, []string{"lost", "out of order", "doubled"}},
			} {
				t.Run(weather.name, func(t *testing.T) {
					spec := atCable(t, cable, sort.setting, "ab")
					spec.Seed, spec.Bound = oneHost.Seed, 10*time.Second
					cable.Be(strings.Fields(weather.what)...)
					before := seenOf(cable)
					gotOuts, gotBits := playGroup(t, spec, func() {})
					require.Equal(t, outs, gotOuts)
					require.Equal(t, bits, gotBits)
					after := seenOf(cable)
					for _, name := range weather.seen {
						require.Greater(t, after[name], before[name], "%s: the network did nothing of it", name)
					}
					t.Logf("before %v, after %v", before, after)
				})
			}
			t.Run("cut", func(t *testing.T) { cutCable(t, cable, atCable(t, cable, sort.setting, sort.hosts), sort.away) })
		})
	}
}

// cutCable: a network that loses everything ends calls without a deadline, when
// the unresponsiveness timeout and what follows it have passed. The larger part goes on,
// or of two halves the one with the lowest rank; the other one is fenced. When
// the network is back, an update brings all together.
func cutCable(t *testing.T, cable *testenv.Cable, spec groupSpec, away []int) {
	t.Helper()
	cable.Be("loss", "0%")
	spec.Away, spec.Bound = away, 10*time.Second // a rank that starves on a busy machine is not unresponsive for so long
	g := startProcesses(t, spec)
	for r := range g.all {
		g.all[r].Await("round 1")
	}
	before := cable.NumDropped()
	begin := time.Now()
	cable.Be("loss", "100%")
	for r := range g.all {
		require.Equal(t, spec.wantEnd(r), g.all[r].Await("cut"))
	}
	t.Logf("all knew after %v, %d packets were lost", time.Since(begin).Round(time.Millisecond), cable.NumDropped()-before)
	require.Greater(t, cable.NumDropped(), before)
	cable.Be("loss", "0%")
	begin = time.Now()
	g.tell(healedFile)
	g.finish(func() {}, g.except(-1)...)
	t.Logf("all were together again, and through, %v later", time.Since(begin).Round(time.Millisecond))
}
