package cpu_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
)

// fp32Value is what expert e answers to a value: it has more digits than bf16.
func fp32Value(e int, x float32) float32 { return float32(x*(1+float32(e)/8192)) + 1.0/4096 }

// computeFP32 runs the stand-in experts; y is float32 [L, C, H].
func (d *dispatched) computeFP32(rank int, s shape, y []byte) {
	l, c := s.experts/s.ranks, s.ranks*s.maxTokens
	for e := range l {
		for i := range int(d.counts[e]) * s.hidden {
			at := e*c*s.hidden + i
			v := fp32Value(rank*l+e, bf16ToFloat(d.res.RecvX[2*at:]))
			binary.LittleEndian.PutUint32(y[4*at:], math.Float32bits(v))
		}
	}
}

// wantFP32 is the definition of the result for one rank.
func wantFP32(in *input, s shape) []byte {
	out := make([]byte, 0, len(in.x))
	for i := range in.tokens * s.hidden {
		token, sum := i/s.hidden, float32(0)
		for k, id := range in.topk[token*s.topk:][:s.topk] {
			if id >= 0 {
				v := fp32Value(int(id), bf16ToFloat(in.x[2*i:]))
				sum = float32(sum + float32(in.weights[token*s.topk+k]*v))
			}
		}
		out = binary.LittleEndian.AppendUint16(out, floatToBF16(sum))
	}
	return out
}

// fp32Trip dispatches and combines, from the slab or from elsewhere.
func (w *world) fp32Trip(rank int, s shape, ins []input, inPlace bool) error {
	in := &ins[rank]
	d, err := w.dispatch(rank, s, in)
	if err != nil {
		return err
	}
	if err := d.check(rank, s, ins); err != nil {
		return err
	}
	if want := 2 * len(d.res.RecvX); len(d.res.CombineX) != want {
		return fmt.Errorf("expert outputs have %d bytes, want %d", len(d.res.CombineX), want)
	}
	y := d.res.CombineX
	if !inPlace {
		y = make([]byte, len(y))
	}
	d.computeFP32(rank, s, y)
	out := make([]byte, len(in.x))
	_, err = w.bufs[rank].Combine(d.res.Op, &ep.CombineArgs{
		X: y, ZeroCopy: inPlace, TopkIdx: in.topk, TopkWeights: in.weights, Out: out,
		NumTokens: in.tokens, TopK: s.topk, Timeout: 20 * time.Second,
	}, ep.PhaseDone, -1)
	if err == nil && !bytes.Equal(out, wantFP32(in, s)) {
		err = fmt.Errorf("%v: combine differs from the oracle", s)
	}
	return err
}

// TestFP32Exchange: float32 outputs, in place and copied, in turn with bf16
// ones in the same slots.
func TestFP32Exchange(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("R%d", ranks), func(t *testing.T) {
			r := seeded(t)
			w := newWorld(t, ranks, ep.Config{NumBytes: 64 << 20, DebugFill: true})
			for i := range 40 {
				s := randomShape(r, ranks)
				ins := inputs(r, s, routings[i%len(routings)])
				if s.fp32 = i%4 != 3; !s.fp32 {
					w.each(func(rank int) error { return w.roundTrip(rank, s, ins) })
					continue
				}
				w.each(func(rank int) error { return w.fp32Trip(rank, s, ins, i%2 == 0) })
			}
		})
	}
}

func TestFP32Counters(t *testing.T) {
	w := newWorld(t, 1, ep.Config{})
	s := shape{ranks: 1, maxTokens: 4, hidden: 16, experts: 4, topk: 2, fp32: true}
	ins := []input{randomInput(r2(0), 4, s.hidden, s.topk, s.experts, uniform)}
	require.NoError(t, w.fp32Trip(0, s, ins, true))
	c := w.bufs[0].Counters()
	require.EqualValues(t, 8*16*4, c.NumBytesReduced)
	require.Zero(t, c.NumBytesCopied)
	require.NoError(t, w.fp32Trip(0, s, ins, false))
	require.EqualValues(t, 8*16*4, w.bufs[0].Counters().NumBytesCopied)
}

// Slots that were sized for bf16 outputs may be too small for float32 ones;
// the other way round there is room.
func TestFP32NeedsRoom(t *testing.T) {
	s := shape{ranks: 1, maxTokens: 8192, hidden: 128, experts: 1, topk: 1}
	ins := []input{randomInput(r2(0), 4, s.hidden, s.topk, s.experts, uniform)}
	fp32 := s
	fp32.fp32 = true
	w := newWorld(t, 1, ep.Config{})
	require.NoError(t, w.roundTrip(0, s, ins))
	_, err := w.dispatch(0, fp32, &ins[0])
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.ErrorContains(t, err, "with float32 outputs need 8388608 bytes per slot, the buffer has 6291456")
	require.NoError(t, w.roundTrip(0, s, ins), "nothing was consumed")

	w = newWorld(t, 1, ep.Config{})
	require.NoError(t, w.fp32Trip(0, fp32, ins, true))
	require.NoError(t, w.roundTrip(0, s, ins))
}

// A first dispatch sizes the buffer, whatever its rows and outputs are.
func TestFirstDispatchSizesForEveryFormat(t *testing.T) {
	for _, s := range []shape{
		{fp8: true}, {fp8: true, scales: protocol.FP8UE8M0}, {fp8: true, scales: protocol.FP8UE8M0, fp32: true},
	} {
		s.ranks, s.maxTokens, s.hidden, s.experts, s.topk = 1, 4, 512, 2, 1
		w := newWorld(t, 1, ep.Config{})
		in := randomInput(r2(0), 4, s.hidden, s.topk, s.experts, uniform)
		_, err := w.dispatch(0, s, &in)
		require.NoError(t, err, "%v %v", s, s.scales)
	}
}
