package cpu_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/inproc"
)

// outcome is everything that one rank gets from one operation. Rows are those
// that the counts say are there.
type outcome struct {
	counts  []int32
	layout  []int64
	srcInfo [][]byte
	rows    [][]byte
	scales  []uint32
	columns [layout.NumColumns][]byte
	out     []byte
}

// runBoth runs one operation on one rank, packed or flat, and takes it down.
func (w *world) runBoth(rank int, s flatShape, flat bool, in *flatInput) (*outcome, error) {
	d := new(dispatched)
	a := w.args(rank, s.shape, &in.input, d)
	if flat {
		a = w.flatArgs(rank, s, in, d)
	}
	if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
		return nil, err
	}
	o := d.takeDown(s, flat)
	out := bytes.Repeat([]byte{0xaa}, in.tokens*s.hidden*2)
	c := &ep.CombineArgs{
		Flat: flat, X: d.fakeOutputs(s, flat), Out: out, NumTokens: in.tokens, Timeout: callTimeout,
	}
	if !flat {
		c.TopkIdx, c.TopkWeights, c.TopK = in.topk, in.weights, s.topk
	}
	_, err := w.bufs[rank].Combine(d.res.Op, c, ep.PhaseDone, -1)
	o.out = out
	return o, err
}

func (d *dispatched) takeDown(s flatShape, flat bool) *outcome {
	o := &outcome{counts: slices.Clone(d.counts), layout: slices.Clone(d.layout)}
	l, c, row := s.experts/s.ranks, s.ranks*s.maxTokens, s.hidden*2
	if flat {
		l = 1
	}
	if s.fp8 {
		row = s.hidden
	}
	for e := range l {
		n := int(d.counts[e])
		o.srcInfo = append(o.srcInfo, bytes.Clone(d.res.SrcInfo[e*c*4:][:n*4]))
		o.rows = append(o.rows, bytes.Clone(d.res.RecvX[e*c*row:][:n*row]))
		groups := len(d.res.Scales) / 4 / (l * c)
		for g := range groups {
			for i := range n {
				b := d.res.Scales[((e*groups+g)*c+i)*4:]
				o.scales = append(o.scales, uint32(b[0])|uint32(b[1])<<8|uint32(b[2])<<16|uint32(b[3])<<24)
			}
		}
	}
	for i, column := range d.res.Columns {
		if flat && len(column) > 0 {
			o.columns[i] = bytes.Clone(column[:int(d.counts[0])*len(column)/c])
		}
	}
	return o
}

// fakeOutputs are expert outputs that depend on the place and on the received
// bytes alone.
func (d *dispatched) fakeOutputs(s flatShape, flat bool) []byte {
	x := bytes.Clone(d.res.CombineX)
	l, c, width := s.experts/s.ranks, s.ranks*s.maxTokens, 2
	if s.fp32 {
		width = 4
	}
	if flat {
		l = 1
	}
	clear(x)
	in := len(d.res.RecvX) / (l * c)
	for e := range l {
		for i := range int(d.counts[e]) {
			at := e*c + i
			y := x[at*s.hidden*width:][:s.hidden*width]
			for h := range s.hidden {
				v := float32(int8(d.res.RecvX[at*in+h%in])) / 16 * float32(e+1)
				if s.fp32 {
					copy(y[4*h:], outputBytes([]float32{v}, true))
				} else {
					copy(y[2*h:], outputBytes([]float32{v}, false))
				}
			}
		}
	}
	if flat {
		return x[:int(d.counts[0])*s.hidden*width]
	}
	return x
}

// TestRemoteSameBits: with deterministic order, and for flat rows always, a group
// over several hosts gives every bit that the same group on one host gives.
func TestRemoteSameBits(t *testing.T) {
	r := seeded(t)
	for i := range 60 {
		hosts := randomHosts(r)
		s := randomFlatShape(r, len(hosts.Of))
		if i%3 == 1 {
			s.fp8, s.hidden = true, 512
			s.scales = protocol.FP8 + protocol.DType(r.IntN(3))
		}
		flat := i%2 == 1
		ins := flatInputs(r, s, routings[r.IntN(len(routings))])
		t.Run(fmt.Sprintf("%v-flat=%v-hosts%v-%d-%d", s.shape, flat, hosts.Of, hosts.NumMessages, hosts.MaxMessageBytes), func(t *testing.T) {
			want := runOver(t, nil, s, flat, ins)
			got := runOver(t, &hosts, s, flat, ins)
			require.Equal(t, want, got)
		})
	}
}

// runOver runs the same operation a few times, so that slots are used again.
func runOver(t *testing.T, hosts *inproc.Hosts, s flatShape, flat bool, ins []flatInput) [][]*outcome {
	overHosts = nil
	if hosts != nil {
		overHosts = func(int) inproc.Hosts { return *hosts }
	}
	defer func() { overHosts = nil }()
	w := newWorld(t, s.ranks, ep.Config{Deterministic: true})
	got := make([][]*outcome, s.ranks)
	w.each(func(rank int) error {
		for range 3 {
			o, err := w.runBoth(rank, s, flat, &ins[rank])
			if err != nil {
				return err
			}
			got[rank] = append(got[rank], o)
		}
		return nil
	})
	for _, b := range w.bufs {
		require.Zero(t, b.Counters().NumMessagesDropped)
		require.NoError(t, b.Close())
	}
	return got
}

func randomHosts(r *rand.Rand) inproc.Hosts {
	h := inproc.Hosts{
		Of: make([]int, 2+r.IntN(4)), NumMessages: 1 + r.IntN(4), MaxMessageBytes: 4096 << r.IntN(5),
		MaxDelay: r.IntN(4), DelaySeed: r.Uint64(),
	}
	for i := range h.Of {
		h.Of[i] = r.IntN(3)
	}
	h.Of[0], h.Of[1] = 0, 1
	return h
}
