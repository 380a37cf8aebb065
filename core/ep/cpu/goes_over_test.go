package cpu_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestGoesOver: two processes exchange over RDMA when the port goes down, or all packets of
// the devices are lost. Both go on over TCP, no rank is lost, and every bit is what the
// same group gets in shared memory. (A soft-RoCE device cannot be removed while a process
// has it open: the kernel waits.)
func TestGoesOver(t *testing.T) {
	needDevice(t)
	spec := groupSpec{Hosts: "aa", Setting: multihost.Shm, Deterministic: true, Seed: testenv.Seed(t), Killed: -1}
	outs, bits := playGroup(t, spec, func() {})
	spec.Hosts, spec.Setting, spec.Dies = "ab", multihost.Auto, true
	for _, death := range []struct {
		name      string
		dies, not func(c *testenv.Cable)
	}{
		{
			"packets", func(c *testenv.Cable) { c.Be("loss", "100%") },
			func(c *testenv.Cable) { c.Be("loss", "0%") },
		},
		{ // at both ends: neither has a cable any more
			"port", func(c *testenv.Cable) { c.SetUp(1, false) }, func(c *testenv.Cable) { c.SetUp(1, true) },
		},
	} {
		t.Run(death.name, func(t *testing.T) {
			cable := testenv.NewDeviceCable(t)
			spec := spec
			spec.Devices = cable.Devices[:]
			g := startProcesses(t, spec)
			for r := range g.all {
				paths := strings.Fields(g.all[r].Await("paths"))
				require.Equal(t, "verbs", paths[1-r])
			}
			g.all[0].Await("round 3")
			begin := time.Now()
			death.dies(cable)
			t.Cleanup(func() { death.not(cable) })
			g.tell(deadFile)
			for r := range g.all {
				require.Equal(t, outs[r], g.all[r].Await("outs"))
				require.Equal(t, bits[r], g.all[r].Await("bits"))
				require.Equal(t, "tcp", strings.Fields(g.all[r].Await("then"))[1-r])
			}
			g.finish(func() {}, 0, 1)
			t.Logf("all were through %v later", time.Since(begin).Round(time.Millisecond))
		})
	}
}
