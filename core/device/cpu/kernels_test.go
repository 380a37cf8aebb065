package cpu

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/protocol"
)

func TestNew(t *testing.T) {
	for _, w := range []int{Reference, Widest, 16, 32, 64} {
		k, err := New(w)
		if w > 0 && !slices.Contains(Widths(), w) {
			if err == nil || k != nil || !strings.Contains(err.Error(), "vector_width is") {
				t.Errorf("New(%d) = %v, %v; want an error", w, k, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("New(%d): %v", w, err)
			continue
		}
		if _, ok := k.(Dequantiser); !ok {
			t.Errorf("New(%d): %T is no Dequantiser", w, k)
		}
		t.Logf("New(%d) is %s", w, k.Name())
	}
	if k, err := New(48); err == nil {
		t.Errorf("New(48) = %s, want an error", k.Name())
	}
	if NewReference().Name() != "cpu/go" {
		t.Errorf("NewReference is %s", NewReference().Name())
	}
	t.Logf("widths %v, features %q", Widths(), Features())
}

// The jobs go to C as they are: their layout is kernels.h's.
func TestJobLayout(t *testing.T) {
	var p device.PlaceJob
	var r device.ReduceJob
	var g RowRange
	got := []uintptr{
		unsafe.Sizeof(p), unsafe.Offsetof(p.Token), unsafe.Offsetof(p.Target), unsafe.Offsetof(p.Expert), unsafe.Offsetof(p.Pos),
		unsafe.Sizeof(r), unsafe.Offsetof(r.Source), unsafe.Offsetof(r.Row),
		unsafe.Sizeof(g), unsafe.Offsetof(g.Expert), unsafe.Offsetof(g.Pos), unsafe.Offsetof(g.Count), unsafe.Offsetof(g.DstRow),
	}
	want := []uintptr{16, 0, 4, 8, 12, 16, 0, 8, 24, 0, 4, 8, 16}
	if !slices.Equal(got, want) {
		t.Errorf("sizes and offsets %v, want %v", got, want)
	}
}

func TestCopy(t *testing.T) {
	for _, k := range all(t) {
		var jobs []device.CopyJob
		for _, n := range []int{0, 1, 7, 64, 4096, 14336} {
			src := offHeap(t, n)
			for i := range src {
				src[i] = byte(i*7 + n)
			}
			jobs = append(jobs, device.CopyJob{Dst: offHeap(t, n), Src: src})
		}
		jobs = append(jobs, device.CopyJob{})
		k.Copy(nil)
		k.Copy(jobs)
		for _, j := range jobs {
			if !bytes.Equal(j.Dst, j.Src) {
				t.Errorf("%s: copy of %d bytes differs", k.Name(), len(j.Src))
			}
		}
	}
}

// TestCopyOfManyBytes: such a batch is copied in another way, whatever its pieces are.
func TestCopyOfManyBytes(t *testing.T) {
	src, dst := offHeap(t, manyBytes), offHeap(t, manyBytes)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}
	for _, k := range all(t) {
		for _, cut := range []int{0, 1, 14336, manyBytes / 2, manyBytes} {
			clear(dst)
			k.Copy([]device.CopyJob{{Dst: dst[cut:], Src: src[cut:]}, {}, {Dst: dst[:cut], Src: src[:cut]}})
			if !bytes.Equal(dst, src) {
				t.Errorf("%s: a copy of %d and %d bytes differs", k.Name(), manyBytes-cut, cut)
			}
		}
	}
}

// manyBytes is more than what Copy leaves in the caches.
const manyBytes = 17<<20 + 5

// Batches with nothing in them are fine.
func TestEmptyBatches(t *testing.T) {
	for _, k := range all(t) {
		k.Place(&device.PlaceBatch{Hidden: 128})
		k.Place(&device.PlaceBatch{Hidden: 128, RowType: protocol.FP8})
		k.Reduce(&device.ReduceBatch{Hidden: 128, TopK: 2})
		k.Reduce(&device.ReduceBatch{})
		k.(Dequantiser).Dequantise(&DequantBatch{Hidden: 128})
		out := offHeap(t, 16)
		fill(out, 0xee)
		k.Reduce(&device.ReduceBatch{Out: out, Hidden: 8, TopK: 0})
		if !bytes.Equal(out, make([]byte, 16)) {
			t.Errorf("%s: a sum of nothing is % x", k.Name(), out)
		}
	}
}

// Rows on the Go heap are pinned for the call; cgo's checker must not object.
func TestGoHeapMemory(t *testing.T) {
	for _, k := range all(t) {
		x := bytes.Repeat([]byte{0x80, 0x3f}, 128) // ones
		target := device.Target{
			Rows: make([]byte, 128), Scales: make([]byte, 4), SrcInfo: make([]byte, 4), RowsPerExpert: 1,
		}
		k.Place(&device.PlaceBatch{X: x, Hidden: 128, RowType: protocol.FP8,
			Targets: []device.Target{target}, Jobs: make([]device.PlaceJob, 1)})
		out, copied := make([]byte, 256), make([]byte, 256)
		k.(Dequantiser).Dequantise(&DequantBatch{Dst: out, Rows: target.Rows, Scales: target.Scales,
			Hidden: 128, RowsPerExpert: 1, Ranges: []RowRange{{Count: 1}}})
		k.Copy([]device.CopyJob{{Dst: copied, Src: out}})
		clear(out)
		k.Reduce(&device.ReduceBatch{Out: out, Hidden: 128, TopK: 1, Sources: [][]byte{copied},
			Jobs: make([]device.ReduceJob, 1), Weights: []float32{1}})
		if !bytes.Equal(out, x) {
			t.Errorf("%s: ones come back as % x ...", k.Name(), out[:8])
		}
	}
}

// Every code with a range of scales, and the batch's addressing.
func TestDequantise(t *testing.T) {
	const experts, capacity, hidden = 2, 5, 384
	scales := []float32{1, 448, 1.0 / 448, 0, 1e-4 / 448, 0x1p-126, 0x1p-140, 3e38, -0.3,
		float32(math.Inf(1)), float32(math.NaN())}
	r := newRand(t)
	b := &DequantBatch{
		Rows: offHeap(t, experts*capacity*hidden), Scales: offHeap(t, experts*capacity*hidden/128*4),
		Dst: offHeap(t, 8*hidden*2), Hidden: hidden, RowsPerExpert: capacity,
		Ranges: []RowRange{{Expert: 1, Pos: 1, Count: 3, DstRow: 4}, {Expert: 0, Pos: 4, Count: 1, DstRow: 0}, {Expert: 1}},
	}
	for round := range 40 {
		for i := range b.Rows {
			b.Rows[i] = byte(i + round*31)
		}
		for i := range len(b.Scales) / 4 {
			s := math.Float32bits(scales[r.IntN(len(scales))])
			copy(b.Scales[4*i:], []byte{byte(s), byte(s >> 8), byte(s >> 16), byte(s >> 24)})
		}
		want := oracleDequantBatch(b)
		for _, k := range all(t) {
			fill(b.Dst, 0xee)
			k.(Dequantiser).Dequantise(b)
			if !bytes.Equal(b.Dst, want) {
				at := firstDifference(b.Dst, want)
				t.Fatalf("%s: byte %d is %#02x, want %#02x", k.Name(), at, b.Dst[at], want[at])
			}
		}
	}
}

func oracleDequantBatch(b *DequantBatch) []byte {
	want := bytes.Repeat([]byte{0xee}, len(b.Dst))
	for _, rg := range b.Ranges {
		for i := range rg.Count {
			row := int(rg.Expert)*b.RowsPerExpert + int(rg.Pos) + int(i)
			for h := range b.Hidden {
				at := (int(rg.Expert)*b.Hidden/128+h/128)*b.RowsPerExpert + int(rg.Pos) + int(i)
				v := oracleDequantise(b.Rows[row*b.Hidden+h], math.Float32frombits(u32At(b.Scales, at)))
				to := 2 * (int(rg.DstRow+i)*b.Hidden + h)
				want[to], want[to+1] = byte(v), byte(v>>8)
			}
		}
	}
	return want
}
