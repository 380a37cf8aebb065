package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/protocol"
)

// inRuns puts the jobs of one source of each token side by side, and leaves
// jobs of none between them.
func inRuns(b *device.ReduceBatch) {
	b.Runs = true
	for t := range len(b.Jobs) / b.TopK {
		jobs, weights := b.Jobs[t*b.TopK:][:b.TopK], b.Weights[t*b.TopK:][:b.TopK]
		for i := range jobs {
			for j := i + 1; j < len(jobs); j++ {
				if jobs[i].Source >= 0 && jobs[j].Source >= 0 && jobs[j].Source < jobs[i].Source {
					jobs[i], jobs[j], weights[i], weights[j] = jobs[j], jobs[i], weights[j], weights[i]
				}
			}
		}
	}
}

// oracleRuns is one value: the sum of each source's sum, which has a rounding
// of its own if rows are bf16.
func oracleRuns(b *device.ReduceBatch, token, h int) uint16 {
	all := float32(0)
	for source := range b.Sources {
		var weights, values []float32
		for k := range b.TopK {
			at := token*b.TopK + k
			if j := b.Jobs[at]; j.Source == int32(source) {
				weights = append(weights, b.Weights[at])
				values = append(values, sourceValue(b, j.Source, int(j.Row)*b.Hidden+h))
			}
		}
		sum := oracleSum(weights, values)
		if b.RowType == protocol.BF16 {
			sum = math.Float32frombits(uint32(oracleRound(sum)) << 16)
		}
		all = float32(float64(all) + float64(sum))
	}
	return oracleRound(all)
}

func runsAndCheck(t *testing.T, b *device.ReduceBatch) {
	t.Helper()
	inRuns(b)
	want := make([]uint16, len(b.Out)/2)
	for i := range want {
		want[i] = oracleRuns(b, i/b.Hidden, i%b.Hidden)
	}
	for _, k := range all(t) {
		fill(b.Out, 0xee)
		k.Reduce(b)
		for i, w := range want {
			if got := bf16At(b.Out, i); got != w {
				t.Fatalf("%s: token %d value %d is %#04x, want %#04x", k.Name(), i/b.Hidden, i%b.Hidden, got, w)
			}
		}
	}
}

// Every tail length at every width, with the guard page behind each buffer.
func TestRunsShapes(t *testing.T) {
	r := newRand(t)
	for _, hidden := range []int{8, 16, 24, 40, 56, 64, 72, 120, 128, 136, 264, 520} {
		for _, topK := range []int{1, 2, 8, 33} {
			runsAndCheck(t, randomReduce(t, r, 1+64/hidden, hidden, topK, true, activation))
			runsAndCheck(t, randomFP32(t, r, 1+64/hidden, hidden, topK, fp32Activation))
		}
	}
}

func TestRunsAnyBits(t *testing.T) {
	r := newRand(t)
	for range 60 {
		b := randomReduce(t, r, 2, 8*(1+r.IntN(40)), 1+r.IntN(6), true, anyBF16)
		anyWeights(r, b)
		runsAndCheck(t, b)
		b = randomFP32(t, r, 2, 8*(1+r.IntN(40)), 1+r.IntN(6), anyFloat32)
		anyWeights(r, b)
		runsAndCheck(t, b)
	}
}

func anyWeights(r *rand.Rand, b *device.ReduceBatch) {
	weights := []float32{0, -1, 1, 1e-40, 1e38, float32(math.Inf(1)), float32(math.NaN()), 0x1p-149}
	for i := range b.Weights {
		if r.IntN(2) == 0 {
			b.Weights[i] = weights[r.IntN(len(weights))]
		}
	}
}

// A run of one row with weight 1 is that row: what a rank has added up and
// rounded can take the place of its rows.
func TestRunsOfSums(t *testing.T) {
	r := newRand(t)
	for range 20 {
		for _, fp32 := range []bool{false, true} {
			b := randomReduce(t, r, 3, 8*(1+r.IntN(20)), 1+r.IntN(8), true, anyBF16)
			if fp32 {
				b = randomFP32(t, r, 3, 8*(1+r.IntN(20)), 1+r.IntN(8), anyFloat32)
			}
			inRuns(b)
			for _, k := range all(t) {
				k.Reduce(b)
				sums := sumsBySource(t, k, b)
				want := append([]byte(nil), b.Out...)
				k.Reduce(sums)
				for i := range len(want) / 2 {
					if got := bf16At(sums.Out, i); got != bf16At(want, i) {
						t.Fatalf("%s, fp32 %v: value %d is %#04x from sums, %#04x from rows", k.Name(), fp32, i, got, bf16At(want, i))
					}
				}
			}
		}
	}
}

// sumsBySource is the batch that has one row per token and source.
func sumsBySource(t *testing.T, k device.Kernels, b *device.ReduceBatch) *device.ReduceBatch {
	tokens := len(b.Jobs) / b.TopK
	sums := &device.ReduceBatch{
		Out: offHeap(t, len(b.Out)), Hidden: b.Hidden, TopK: len(b.Sources), RowType: b.RowType, Runs: true,
		Jobs: make([]device.ReduceJob, tokens*len(b.Sources)), Weights: make([]float32, tokens*len(b.Sources)),
	}
	for source := range b.Sources {
		one := *b
		one.Runs, one.OutType = false, b.RowType
		one.Out = offHeap(t, tokens*one.OutRowBytes())
		one.Jobs = append([]device.ReduceJob(nil), b.Jobs...)
		for i := range one.Jobs {
			if one.Jobs[i].Source != int32(source) {
				one.Jobs[i].Source = -1
			}
		}
		k.Reduce(&one)
		sums.Sources = append(sums.Sources, one.Out)
		for token := range tokens {
			at := token*len(b.Sources) + source
			sums.Jobs[at], sums.Weights[at] = device.ReduceJob{Source: int32(source), Row: int64(token)}, 1
		}
	}
	return sums
}

// Sums of float32 rows that are not rounded, NaN included.
func TestReduceFP32Out(t *testing.T) {
	r := newRand(t)
	for hidden := 1; hidden <= 144; hidden++ {
		b := randomFP32(t, r, 2, hidden, 1+hidden%5, anyFloat32)
		b.OutType, b.Out = protocol.FP32, offHeap(t, 2*4*hidden)
		for _, k := range all(t) {
			fill(b.Out, 0xee)
			k.Reduce(b)
			for i := range 2 * hidden {
				var weights, values []float32
				for k := range b.TopK {
					at := i/hidden*b.TopK + k
					if j := b.Jobs[at]; j.Source >= 0 {
						weights = append(weights, b.Weights[at])
						values = append(values, sourceValue(b, j.Source, int(j.Row)*hidden+i%hidden))
					}
				}
				want := math.Float32bits(oracleSum(weights, values))
				if want&0x7fffffff > 0x7f800000 {
					want = 0x7fc00000
				}
				if got := u32At(b.Out, i); got != want {
					t.Fatalf("%s: hidden %d, value %d is %#08x, want %#08x", k.Name(), hidden, i, got, want)
				}
			}
		}
	}
}
