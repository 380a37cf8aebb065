package cuda

import (
	"bytes"
	"slices"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/dl"
)

// onCPU are the CPU device's kernels.
func (g *group) onCPU() device.Kernels {
	k, err := cpu.Open(cpu.Options{})
	require.NoError(g.t, err)
	g.t.Cleanup(k.Close)
	return k
}

func rawBytes[T any](v []T) []byte {
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(zero)))
}

// region is a part of memory at base.
func region(base uint64, r layout.Region) []byte {
	return unsafe.Slice(dl.At[byte](uintptr(base)+uintptr(r.Off)), r.Bytes)
}

// sameRowsAsCPU has the CPU's kernels place the rows that rank r received at
// the same places, and compares the slabs, all of the rows and scales.
func (o *op) sameRowsAsCPU(g *group, r int) {
	s, err := layout.Of(o.shape)
	require.NoError(g.t, err)
	seen, k := g.ranks[r].seen.Address(), g.cpu
	to := device.Target{RowsPerExpert: int(s.RowsPerExpert)}
	rows, scales, info := region(seen, s.Rows()), region(seen, s.Scales()), region(seen, s.SrcInfo())
	to.Rows, to.Scales, to.SrcInfo = append([]byte{}, rows...), append([]byte{}, scales...), append([]byte{}, info...)
	for src := range o.tokens {
		b := device.PlaceBatch{
			X: rawBytes(o.x[src]), Hidden: int(s.Hidden), RowType: s.RowType,
			Targets: []device.Target{to},
		}
		for l := range int(s.LocalExperts) {
			at := o.ranges[r][l*len(o.tokens)+src]
			for i := at >> 32; i < at>>32+at&0xffffffff; i++ {
				token := *dl.At[int32](uintptr(seen) + uintptr(s.SrcInfoOff+4*(int64(l)*s.RowsPerExpert+i)))
				b.Jobs = append(b.Jobs, device.PlaceJob{Token: token, Expert: int32(l), Pos: int32(i)})
			}
		}
		forget(&b, &s)
		k.Place(&b)
	}
	require.Equal(g.t, to.Rows, rows)
	require.Equal(g.t, to.Scales, scales)
}

// forget changes what the batch is about to write: what it leaves so differs.
func forget(b *device.PlaceBatch, s *layout.Slab) {
	to := &b.Targets[0]
	for _, j := range b.Jobs {
		row := int64(j.Expert)*s.RowsPerExpert + int64(j.Pos)
		to.Rows[row*s.RowBytes] ^= 0xff
		for g := range s.Groups() {
			to.Scales[((int64(j.Expert)*s.Groups()+g)*s.RowsPerExpert+int64(j.Pos))*4] ^= 0xff
		}
	}
}

// sameSumsAsCPU has the CPU's kernels add up what lies in the slabs, and
// compares it with rank r's result.
func (o *op) sameSumsAsCPU(g *group, r int) {
	s, err := layout.Of(o.shape)
	require.NoError(g.t, err)
	out := make([]byte, 2*len(o.outs[r]))
	b := device.ReduceBatch{
		Out: out, Hidden: int(s.Hidden), TopK: o.topK, RowType: s.OutputType, Weights: o.w[r],
	}
	where := map[[2]int]device.ReduceJob{} // by token and expert
	for owner, m := range g.ranks {
		slab := m.Slab(o.calls[owner].Slot)
		b.Sources = append(b.Sources, region(slab, s.Y()))
		for l := range int(s.LocalExperts) {
			at := o.ranges[owner][l*len(o.tokens)+r]
			for i := at >> 32; i < at>>32+at&0xffffffff; i++ {
				row := int64(l)*s.RowsPerExpert + i
				token := *dl.At[int32](uintptr(slab) + uintptr(s.SrcInfoOff+4*row))
				where[[2]int{int(token), owner*int(s.LocalExperts) + l}] = device.ReduceJob{Source: int32(owner), Row: row}
			}
		}
	}
	for i, id := range o.kept[r] {
		job, there := where[[2]int{i / o.topK, int(id)}]
		if !there {
			job.Source = -1
		}
		b.Jobs = append(b.Jobs, job)
	}
	if o.shape.Flat {
		o.flatJobs(&b, r, where)
	}
	if b.Runs = o.flags&protocol.FlagPreReduce != 0; b.Runs {
		b.Weights = append([]float32(nil), b.Weights...)
		for t := range o.tokens[r] {
			inRuns(b.Jobs[t*o.topK:][:o.topK], b.Weights[t*o.topK:][:o.topK])
		}
	}
	g.cpu.Reduce(&b)
	require.True(g.t, bytes.Equal(out, rawBytes(o.outs[r])), "rank %d", r)
}

// inRuns puts the jobs of one source side by side, sources in the order in which
// they come first.
func inRuns(jobs []device.ReduceJob, weights []float32) {
	var order []int32
	for _, job := range jobs {
		if job.Source >= 0 && !slices.Contains(order, job.Source) {
			order = append(order, job.Source)
		}
	}
	order = append(order, -1)
	was, w, n := slices.Clone(jobs), slices.Clone(weights), 0
	for _, source := range order {
		for i, job := range was {
			if job.Source == source {
				jobs[n], weights[n] = job, w[i]
				n++
			}
		}
	}
}
