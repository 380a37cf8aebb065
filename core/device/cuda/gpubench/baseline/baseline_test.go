package baseline

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/libnvrtc"
	"github.com/moewire/moewire/core/internal/testenv"
)

// emulate is the emulator with these kernels, too.
func emulate(t *testing.T) *libcuda.Library { return cudatest.Benchmarks().Emulate(t).Library }

// memory of the emulated device is memory of this process.
func memory[T any](t *testing.T, lib *libcuda.Library, n int) (uint64, []T) {
	var zero T
	p, err := lib.MemAlloc(uint64(max(n, 1)) * uint64(unsafe.Sizeof(zero)))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, lib.MemFree(p)) })
	return uint64(p), at[T](uint64(p), n)
}

func at[T any](addr uint64, n int) []T { return unsafe.Slice(dl.At[T](uintptr(addr)), n) }

func float(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// rank is one rank's tensors as the test sees them.
type rank struct {
	Tensors
	x, out []uint16
	ids    []int64
	w      []float32
}

// TestAgainstPlainLoops compares rows, where they came from, and sums.
func TestAgainstPlainLoops(t *testing.T) {
	lib := emulate(t)
	require.NoError(t, lib.Init())
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 23))
	for _, s := range []Shape{
		{Ranks: 1, Tokens: 3, Hidden: 8, TopK: 1, Experts: 1},
		{Ranks: 2, Tokens: 5, Hidden: 128, TopK: 3, Experts: 6},
		{Ranks: 4, Tokens: 4, Hidden: 64, TopK: 2, Experts: 4},
		{Ranks: 2, Tokens: 3, Hidden: 512, TopK: 2, Experts: 4, FP8: true},
	} {
		t.Run(fmt.Sprintf("%+v", s), func(t *testing.T) { compare(t, lib, rng, s) })
	}
}

// enter makes the device's context current until the test ends.
func enter(t *testing.T, lib *libcuda.Library) {
	runtime.LockOSThread() // a test has a goroutine, and so a thread, of its own
	dev, err := lib.Device(0)
	require.NoError(t, err)
	ctx, err := lib.RetainPrimary(dev)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, lib.ReleasePrimary(dev)) })
	require.NoError(t, lib.PushContext(ctx))
	t.Cleanup(func() { assert.NoError(t, lib.PopContext()) })
}

func compare(t *testing.T, lib *libcuda.Library, rng *rand.Rand, s Shape) {
	enter(t, lib)
	var ranks []*rank
	var tensors []Tensors
	var streams []libcuda.Stream
	for range s.Ranks {
		r := random(t, lib, rng, s)
		stream, err := lib.StreamCreate(0)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, lib.StreamDestroy(stream)) })
		ranks, tensors, streams = append(ranks, r), append(tensors, r.Tensors), append(streams, stream)
	}
	e, err := New(lib, []byte("kernels\x00"), s, tensors, streams)
	require.NoError(t, err)
	defer func() { assert.NoError(t, e.Close()) }()
	e.Threads, e.Blocks = 32, 2
	sync := func() {
		for _, stream := range streams {
			require.NoError(t, lib.StreamSynchronize(stream))
		}
	}
	for range 3 {
		require.NoError(t, e.Dispatch())
		sync()
		for r := range ranks {
			checkRows(t, e, ranks, r)
		}
		require.NoError(t, e.Combine())
		sync()
		for _, r := range ranks {
			checkSums(t, r, s, output)
		}
	}
	if s.FP8 {
		return
	}
	for range 3 { // one behind the other, the rows being the outputs
		require.NoError(t, e.Dispatch())
		require.NoError(t, e.Combine())
	}
	sync()
	for _, r := range ranks {
		checkSums(t, r, s, func(src *rank, _, token, j int, s Shape) uint16 { return src.x[token*s.Hidden+j] })
	}
}

func random(t *testing.T, lib *libcuda.Library, rng *rand.Rand, s Shape) *rank {
	r := &rank{}
	r.X, r.x = memory[uint16](t, lib, s.Tokens*s.Hidden)
	r.Out, r.out = memory[uint16](t, lib, s.Tokens*s.Hidden)
	r.TopkIdx, r.ids = memory[int64](t, lib, s.Tokens*s.TopK)
	r.Weights, r.w = memory[float32](t, lib, s.Tokens*s.TopK)
	for i := range r.x {
		r.x[i] = uint16(math.Float32bits(float32(rng.NormFloat64())) >> 16)
	}
	for token := range s.Tokens {
		for k, expert := range rng.Perm(s.Experts)[:s.TopK] {
			r.ids[token*s.TopK+k], r.w[token*s.TopK+k] = int64(expert), rng.Float32()-0.5
			if rng.IntN(4) == 0 {
				r.ids[token*s.TopK+k] = -1
			}
		}
	}
	return r
}

// checkRows looks at what rank r has packed, and puts outputs in its place.
func checkRows(t *testing.T, e *Exchange, ranks []*rank, r int) {
	s, a := e.s, e.args[r]
	local, rows := s.Experts/s.Ranks, s.Ranks*s.Tokens
	type place struct{ l, at, src, token int }
	var all []place
	for l := range local {
		taken := map[int]bool{}
		for src := range s.Ranks {
			word := at[int64](a.Ranges, local*s.Ranks)[l*s.Ranks+src]
			begin, n := int(word>>32), int(word&0xffffffff)
			want := map[int]bool{}
			for i, id := range ranks[src].ids {
				if int(id) == r*local+l {
					want[i/s.TopK] = true
				}
			}
			require.Len(t, want, n)
			for i := begin; i < begin+n; i++ {
				token := int(at[int32](a.SrcInfo, local*rows)[l*rows+i])
				require.True(t, want[token] && !taken[i], "expert %d, source %d, token %d", l, src, token)
				delete(want, token)
				taken[i] = true
				all = append(all, place{l, l*rows + i, src, token})
			}
		}
	}
	for _, p := range all {
		checkRow(t, s, a, p.at, ranks[p.src].x[p.token*s.Hidden:][:s.Hidden])
	}
	outputs := at[uint16](a.Packed, local*rows*s.Hidden)
	for _, p := range all {
		for j := range s.Hidden {
			outputs[p.at*s.Hidden+j] = output(ranks[p.src], r*local+p.l, p.token, j, s)
		}
	}
}

// checkRow compares a packed row with its values; of fp8, by what it stands for.
func checkRow(t *testing.T, s Shape, a *args, row int, x []uint16) {
	if !s.FP8 {
		require.Equal(t, x, at[uint16](a.Packed, (row+1)*s.Hidden)[row*s.Hidden:])
		return
	}
	codes := at[byte](a.Packed, (row+1)*s.Hidden)[row*s.Hidden:]
	scales := at[float32](a.Scales, (row+1)*s.Hidden/128)[row*s.Hidden/128:]
	for b, scale := range scales {
		amax := float32(1e-4)
		for _, v := range x[128*b:][:128] {
			amax = max(amax, float32(math.Abs(float64(float(v)))))
		}
		require.Equal(t, amax/448, scale)
		for j := 128 * b; j < 128*b+128; j++ {
			require.InDelta(t, float(x[j]), e4m3(codes[j])*scale, float64(amax)/16)
		}
	}
}

func e4m3(code byte) float32 {
	exp, frac := int(code>>3&15), float64(code&7)
	v := math.Ldexp(8+frac, exp-10)
	if exp == 0 {
		v = math.Ldexp(frac, -9)
	}
	if code&0x80 != 0 {
		v = -v
	}
	return float32(v)
}

// output is what an expert makes of a token: of other digits for each.
func output(src *rank, expert, token, j int, s Shape) uint16 {
	return src.x[token*s.Hidden+j] + uint16(expert)
}

func checkSums(t *testing.T, r *rank, s Shape, output func(src *rank, expert, token, j int, s Shape) uint16) {
	for token := range s.Tokens {
		for j := range s.Hidden {
			sum := float32(0)
			for k := range s.TopK {
				if id := r.ids[token*s.TopK+k]; id >= 0 {
					sum += float32(r.w[token*s.TopK+k] * float(output(r, int(id), token, j, s)))
				}
			}
			u := math.Float32bits(sum)
			require.Equal(t, uint16((u+0x7fff+u>>16&1)>>16), r.out[token*s.Hidden+j], "token %d value %d", token, j)
		}
	}
}

// TestCompiles for a GPU.
func TestCompiles(t *testing.T) {
	lib, err := libnvrtc.Load(testenv.Toolkit(t, "lib/libnvrtc.so.*"))
	require.NoError(t, err)
	code, err := Compile(lib, "sm_90")
	require.NoError(t, err)
	require.Equal(t, "\x7fELF", string(code[:4]))
}

// TestOffsets: the parameters are the kernels', by their order and their size.
func TestOffsets(t *testing.T) {
	text, err := os.ReadFile("baseline.cu")
	require.NoError(t, err)
	body := regexp.MustCompile(`(?s)struct mw_four_args \{(.*?)\n\};`).FindSubmatch(text)[1]
	body = regexp.MustCompile(`//.*`).ReplaceAll(body, nil)
	size := 0
	for _, m := range regexp.MustCompile(`(?s)(const )?(\w+) ([^;]*);`).FindAllSubmatch(body, -1) {
		for _, name := range regexp.MustCompile(`\*?\w+`).FindAll(m[3], -1) {
			if name[0] == '*' || string(m[2]) == "i64" {
				size += 8
			} else {
				size += 4
			}
		}
	}
	require.Equal(t, size, int(unsafe.Sizeof(args{})))
}

func TestShapes(t *testing.T) {
	good := Shape{Ranks: 2, Tokens: 1, Hidden: 512, TopK: 1, Experts: 2}
	require.NoError(t, good.check())
	for _, change := range []func(*Shape){
		func(s *Shape) { s.Ranks = 0 }, func(s *Shape) { s.Tokens = 0 }, func(s *Shape) { s.Experts = 3 },
		func(s *Shape) { s.Hidden = 12 }, func(s *Shape) { s.FP8, s.Hidden = true, 128 }, func(s *Shape) { s.TopK = 65 },
	} {
		s := good
		change(&s)
		_, err := New(nil, nil, s, nil, nil)
		assert.Error(t, err)
	}
}
