package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/op"
)

// routedPair makes two ranks with room for routings on the emulated device, as ranks of one host or of two.
func routedPair(t *testing.T, hosts bool) (pair [2]*Buffer, callers [2]*caller) {
	emu := cudatest.Emulate(t)
	if hosts {
		pair = remotePair(t)
	} else {
		for r := range pair {
			pair[r] = newOnCUDA(t, r, 2, func(*Config) {})
		}
	}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	for r, b := range pair {
		callers[r] = newCaller(t, emu, b)
	}
	t.Cleanup(func() {
		for _, c := range callers {
			c.end(t, emu, 0)
			c.end(t, emu, 1)
		}
		closePair(t, pair, 0, 1)
	})
	return pair, callers
}

// TestRoutingOnCUDA: each rank sends three tokens to both, and gets their sums; between ranks of one host and
// of two, where the scatter is driven in slices.
func TestRoutingOnCUDA(t *testing.T) {
	for name, hosts := range map[string]bool{"one host": false, "two hosts": true} {
		t.Run(name, func(t *testing.T) {
			pair, callers := routedPair(t, hosts)
			both(t, func(rank int) (none struct{}, err error) {
				b, stream, at := pair[rank], callers[rank].streams[0], callers[rank].memory
				x := cudatest.Slice[uint16](at, 3*8)
				for i := range x {
					x[i] = uint16(0x3f80 + 16*rank) // 1 or 1.125
				}
				r, _, err := b.MakeRouting(&routing.Args{
					NumTokens: 3, NumExperts: 2, TopK: 2, TopkIdx: []int64{0, 1, 1, 0, 0, 1}, Timeout: soon, Stream: stream,
				}, -1)
				if err != nil {
					return none, err
				}
				require.Equal(t, 6, r.NumRows())
				o, err := b.Scatter(r, &routing.ScatterArgs{
					RowBytes: 16, Timeout: soon, Device: &routing.DeviceScatter{X: at, Out: at + 4096, Stream: stream},
				}, 0)
				for err == ep.ErrInProgress {
					require.True(t, o.Pending())
					err = o.Wait(ep.PhaseDone, 0)
				}
				if o.Pending() {
					require.Equal(t, op.Done, o.State())
					o.Close()
				}
				if err != nil {
					return none, err
				}
				require.Equal(t, []uint16{0x3f80, 0x3f90}, []uint16{cudatest.Slice[uint16](at+4096, 48)[0], cudatest.Slice[uint16](at+4096, 48)[47]})
				_, err = b.Gather(r, &routing.GatherArgs{
					Hidden: 8, RowType: protocol.BF16, OutType: protocol.BF16, Timeout: soon,
					Device: &routing.DeviceGather{X: at + 4096, Out: at + 8192, Stream: stream},
				}, -1)
				for _, v := range cudatest.Slice[uint16](at+8192, 3*8) {
					require.Equal(t, uint16(0x4000+16*rank), v) // twice what was sent
				}
				return none, err
			})
		})
	}
}
