package cuda_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/testenv"
)

// pathOf is how a rank's memory is expected to be reached.
func (s *rankSpec) pathOf(rank int) string { return nth(s.Path, rank) }

// nth is a rank's part of a list, or what all have.
func nth(list string, rank int) string {
	all := strings.Split(list, ",")
	return all[rank%len(all)]
}

// fabricFor is what a driver has of fabric handles in a group of one way.
func fabricFor(path string) string {
	if path == "fabric" {
		return "1"
	}
	return "0"
}

// needFabric skips on a device if its driver gives no fabric handles, and says why.
func needFabric(t *testing.T) {
	t.Helper()
	emu := cudatest.Open(t)
	if !cudatest.OnDevice() {
		return
	}
	d, err := openDevice(t, emu)
	require.NoError(t, err)
	m, err := d.AllocShared(1)
	require.NoError(t, err)
	_, named := m.Fabric()
	why := m.NoFabric()
	require.NoError(t, m.Close())
	require.NoError(t, d.Close())
	if !named {
		testenv.Lacking(t, "fabric", fmt.Sprintf("the driver gives no fabric handles: %v", why))
	}
}

// TestProcessesByFabric is TestProcesses by fabric handles, in groups of which some ranks
// share otherwise, too; and where some have no such handles, or may make none. On a
// device it needs a driver that gives them, and an IMEX channel.
func TestProcessesByFabric(t *testing.T) {
	needFabric(t)
	for _, c := range []struct {
		path, fabric string
		ranks        int
	}{
		{"fabric", "1", 2},
		{"fabric,fd,ipc", "1", 3},
		{"fd,fd,ipc,fd", "1,refused,1,0", 4},
	} {
		t.Run(c.path, func(t *testing.T) {
			if cudatest.OnDevice() && c.fabric != "1" {
				t.Skip("a device has fabric handles for all or none")
			}
			g := startProcesses(t, rankSpec{Ranks: c.ranks, Play: "rounds", Path: c.path, Fabric: c.fabric, Seed: testenv.Seed(t)})
			for r := range c.ranks {
				g.finish(r)
			}
		})
	}
}

// TestProcessKilledByFabric is TestProcessKilled where memory is reached by fabric
// handles: that of the killed rank stays.
func TestProcessKilledByFabric(t *testing.T) {
	needFabric(t)
	spec := rankSpec{Ranks: 3, Play: "killed", Path: "fabric", Fabric: "1", Seed: testenv.Seed(t)}
	g := startProcesses(t, spec)
	g.replaceKilled(t, spec)
}
