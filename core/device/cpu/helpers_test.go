package cpu

import (
	"encoding/binary"
	"flag"
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/device"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 takes the time")

// newRand prints its seed, so that a failure can be repeated with -seed.
func newRand(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// all returns every implementation of this machine, the reference first, each
// width with every option as well.
func all(t testing.TB) []device.Kernels {
	ks := []device.Kernels{NewReference()}
	for _, w := range Widths() {
		ks = append(ks, open(t, Options{Width: w}), open(t, Options{Width: w, Stores: StoresCached, Prefetch: 1}),
			open(t, Options{Width: w, Stores: StoresCached, Prefetch: 3, Threads: 3}))
		if canStream {
			ks = append(ks, open(t, Options{Width: w, Stores: StoresStreaming}),
				open(t, Options{Width: w, Stores: StoresStreaming, Prefetch: 2, Threads: 2}))
		}
	}
	return ks
}

// open gives even the smallest batch to all threads.
func open(t testing.TB, o Options) device.Kernels {
	k, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	shareAll(k, o)
	return k
}

// offHeap returns n bytes that end where an unreadable page begins, so that
// one byte too many is a fault.
func offHeap(t testing.TB, n int) []byte {
	page := syscall.Getpagesize()
	size := (n + page - 1) / page * page
	m, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal("mmap:", err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(m) })
	if err := syscall.Mprotect(m[size:], syscall.PROT_NONE); err != nil {
		t.Fatal("mprotect:", err)
	}
	return m[size-n : size : size]
}

// offHeapBF16 returns off-heap memory that holds the values.
func offHeapBF16(t testing.TB, values []uint16) []byte {
	b := offHeap(t, 2*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint16(b[2*i:], v)
	}
	return b
}

func bf16At(b []byte, i int) uint16 { return binary.LittleEndian.Uint16(b[2*i:]) }
func u32At(b []byte, i int) uint32  { return binary.LittleEndian.Uint32(b[4*i:]) }

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// edges are the bf16 values at which something changes.
var edges = []uint16{
	0x0000, 0x8000, // zeros
	0x0001, 0x8001, 0x007f, 0x807f, // subnormals
	0x0080, 0x8080, 0x3f80, 0xbf80, 0x4000, 0x3eab,
	0x38d1, 0x38d2, // either side of 1e-4
	0x7f7f, 0xff7f, // largest finite
	0x7f80, 0xff80, // infinities
	0x7f81, 0x7fc0, 0xffc0, 0xffff, // NaNs
}

// anyBF16 is any bit pattern, an edge more often than chance would have it.
func anyBF16(r *rand.Rand) uint16 {
	if r.IntN(8) == 0 {
		return edges[r.IntN(len(edges))]
	}
	return uint16(r.Uint32())
}

// activation is an ordinary finite value.
func activation(r *rand.Rand) uint16 {
	return toBF16(float32(r.NormFloat64() * math.Exp2(float64(r.IntN(6)-3))))
}
