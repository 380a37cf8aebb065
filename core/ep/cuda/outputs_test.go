package cuda_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestCombineBufferAfterACombine: what comes behind CombineX on the stream writes where
// outputs were read, once the other rank has read them. If the own sum is not launched
// yet, it is launched first.
func TestCombineBufferAfterACombine(t *testing.T) {
	group := newGroup(t, 2)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 12))
	var all []*op
	for _, r := range group {
		all = append(all, newOp(r, rng))
	}
	all[0].ids.values[0] = 2 // rank 1 has a row of rank 0
	all[0].w.values[0] = 1
	for _, o := range all {
		o.dispatch()
	}
	for _, o := range all {
		require.Equal(t, o.res.CombineX, o.room())
		o.combineFirst()
	}
	late, writer := all[0], all[1]
	writer.room()
	writer.fill()
	require.Never(t, func() bool { return writer.r.idle(writer.r.stream) }, 50*time.Millisecond, time.Millisecond, "rank 0 has not read yet")
	late.room()
	for _, o := range all {
		o.r.sync()
		o.check()
		clear(o.out.values)
		o.room()
		o.passOn()
		o.combin.Device.X = o.res.CombineX
		o.publish()
	}
	for _, o := range all {
		o.room() // has the sum launched
	}
	for _, o := range all {
		o.r.sync()
		o.check()
		require.NoError(t, o.r.Release(o.res.Handle, o.r.stream))
		_, err := o.r.CombineX(o.res.Handle, o.r.stream)
		require.ErrorIs(t, err, ep.ErrStaleHandle)
	}
}

// room asks for the combine buffer.
func (o *op) room() uint64 {
	at, err := o.r.CombineX(o.res.Handle, o.r.stream)
	require.NoError(o.r.t, err)
	return at
}

// fill makes all outputs NaN.
func (o *op) fill() {
	o.r.must(func() error {
		return o.r.emu.MemsetAsync(libcuda.DevicePtr(o.res.CombineX), 0xff, uint64(o.outputBytes()), libcuda.Stream(o.r.stream))
	})
}

// passOn has experts return the rows as they came.
func (o *op) passOn() {
	o.r.must(func() error {
		to, from := libcuda.DevicePtr(o.res.CombineX), libcuda.DevicePtr(o.res.RecvX)
		return o.r.emu.CopyAsync(to, from, uint64(o.outputBytes()), libcuda.Stream(o.r.stream))
	})
}

func (o *op) outputBytes() int64 { return o.res.Slab.LocalExperts * o.res.Slab.RowsPerExpert * 256 }
