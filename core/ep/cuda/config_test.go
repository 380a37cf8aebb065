package cuda_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/group/rankset"
)

// TestBadStandings: what no buffer can have come to is refused, by its rank.
func TestBadStandings(t *testing.T) {
	for name, check := range map[string]struct {
		params func(ep.Standing) ([]byte, error)
		meet   func(int, [][]byte) (ep.Standing, error)
	}{
		"cpu":  {func(st ep.Standing) ([]byte, error) { return cpu.Params(ep.Config{NumSlots: 2}, st) }, cpu.CheckParams},
		"cuda": {configOf(t, 2).Params, cuda.CheckParams},
	} {
		t.Run(name, func(t *testing.T) {
			mine, err := check.params(ep.Standing{Epoch: 3, Next: 9})
			require.NoError(t, err)
			theirs, err := check.params(ep.Standing{Epoch: 4, Next: 1<<43 - 1})
			require.NoError(t, err)
			next, err := check.meet(0, [][]byte{mine, theirs})
			require.NoError(t, err)
			require.Equal(t, ep.Standing{Epoch: 5, Next: 1<<43 - 1}, next)
			// The numbers stand last.
			for text, change := range map[string]func(b []byte){
				"rank 1 says that it is in epoch 65536":  func(b []byte) { binary.LittleEndian.PutUint64(b[len(b)-16:], 1<<16) },
				"rank 1 says that its next operation is": func(b []byte) { binary.LittleEndian.PutUint64(b[len(b)-8:], 1<<43) },
			} {
				bad := append([]byte(nil), theirs...)
				change(bad)
				_, err := check.meet(0, [][]byte{mine, bad})
				require.ErrorIs(t, err, ep.ErrMismatch)
				require.ErrorContains(t, err, text)
			}
		})
	}
}

// TestBadConfigs: each is refused by the name of the bound.
func TestBadConfigs(t *testing.T) {
	const mostExperts = rankset.MaxRanks * 8192
	for text, change := range map[string]func(c *cuda.Config){
		"max_selections is 2147483648, allowed 1 to 2147483647":                       func(c *cuda.Config) { c.MaxSelections = math.MaxInt32 + 1 },
		fmt.Sprintf("max_experts is %d, allowed 1 to %d", mostExperts+1, mostExperts): func(c *cuda.Config) { c.MaxExperts = mostExperts + 1 },
		"num_slots on CUDA is 9, allowed 1 to 8":                                      func(c *cuda.Config) { c.NumSlots = 9 },
		"max_selections is -1, allowed 1 to":                                          func(c *cuda.Config) { c.MaxSelections = -1 },
	} {
		c := configOf(t, 2)
		change(&c)
		_, err := c.Params(ep.Standing{})
		require.ErrorIs(t, err, ep.ErrInvalid)
		require.ErrorContains(t, err, text)
	}
}

// TestEndsBeforeTheDeviceGivesUp: a rank that is to be killed is dead long before the
// device stops waiting for memory that the rank may write to, whatever the call's timeout.
func TestEndsBeforeTheDeviceGivesUp(t *testing.T) {
	source, err := os.ReadFile("../../device/cuda/kernels/waits.cuh")
	require.NoError(t, err)
	found := regexp.MustCompile(`MW_HOST_GRACE_NS = (\d+)`).FindSubmatch(source)
	require.NotNil(t, found)
	grace, err := time.ParseDuration(string(found[1]) + "ns")
	require.NoError(t, err)
	require.LessOrEqual(t, 4*cuda.DefaultEndAfter, grace)
}
