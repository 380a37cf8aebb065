package cpu

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/protocol"
)

// rowType is that of rows that are cast, or not.
func rowType(cast bool) protocol.DType {
	if cast {
		return protocol.FP8
	}
	return protocol.BF16
}

// formats are the types of fp8 rows that a hidden size allows.
func formats(hidden int) []protocol.DType {
	all := []protocol.DType{protocol.FP8, protocol.FP8Pow2, protocol.FP8UE8M0}
	if hidden%512 != 0 {
		return all[:2]
	}
	return all
}

// slabs returns numTargets targets of experts*rows rows each, filled with
// 0xee. Their scales have room for float32.
func slabs(t testing.TB, numTargets, experts, rows, hidden int, cast bool) []device.Target {
	rowBytes, scaleBytes := 2*hidden, 0
	if cast {
		rowBytes, scaleBytes = hidden, 4*hidden/protocol.QuantBlock
	}
	targets := make([]device.Target, numTargets)
	for i := range targets {
		targets[i] = device.Target{
			Rows:          offHeap(t, experts*rows*rowBytes),
			SrcInfo:       offHeap(t, experts*rows*4),
			RowsPerExpert: rows,
		}
		if cast {
			targets[i].Scales = offHeap(t, experts*rows*scaleBytes)
		}
		clearTarget(&targets[i])
	}
	return targets
}

func clearTarget(t *device.Target) {
	fill(t.Rows, 0xee)
	fill(t.Scales, 0xee)
	fill(t.SrcInfo, 0xee)
}

// checkPlaced compares the targets, byte for byte, with what the oracle
// expects to find there, untouched memory included.
func checkPlaced(t *testing.T, name string, b *device.PlaceBatch, experts int) {
	t.Helper()
	for i := range b.Targets {
		got := &b.Targets[i]
		want := device.Target{
			Rows:    bytes.Repeat([]byte{0xee}, len(got.Rows)),
			Scales:  bytes.Repeat([]byte{0xee}, len(got.Scales)),
			SrcInfo: bytes.Repeat([]byte{0xee}, len(got.SrcInfo)),
		}
		for _, j := range b.Jobs {
			if int(j.Target) == i {
				oraclePlace(&want, b, j, got.RowsPerExpert)
			}
		}
		for _, c := range []struct {
			what      string
			got, want []byte
		}{
			{"rows", got.Rows, want.Rows},
			{"scales", got.Scales, want.Scales},
			{"src info", got.SrcInfo, want.SrcInfo},
		} {
			if !bytes.Equal(c.got, c.want) {
				at := firstDifference(c.got, c.want)
				t.Fatalf("%s: target %d, %s differ at byte %d of %d: %#02x, want %#02x",
					name, i, c.what, at, len(c.got), c.got[at], c.want[at])
			}
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

func oraclePlace(want *device.Target, b *device.PlaceBatch, j device.PlaceJob, capacity int) {
	at := int(j.Expert)*capacity + int(j.Pos)
	copy(want.SrcInfo[4*at:], []byte{byte(j.Token), byte(j.Token >> 8), byte(j.Token >> 16), byte(j.Token >> 24)})
	x := b.X[int(j.Token)*2*b.Hidden:][:2*b.Hidden]
	if !b.RowType.IsFP8() {
		copy(want.Rows[at*2*b.Hidden:], x)
		return
	}
	blocks := b.Hidden / 128
	for g := range blocks {
		values := make([]uint16, 128)
		for i := range values {
			values[i] = bf16At(x, 128*g+i)
		}
		codes, s := oracleQuantise(values, b.RowType)
		copy(want.Rows[at*b.Hidden+128*g:], codes)
		if b.RowType == protocol.FP8UE8M0 {
			word := (int(j.Expert)*blocks/4+g/4)*capacity + int(j.Pos)
			want.Scales[4*word+g%4] = oracleScaleByte(s)
			continue
		}
		copy(want.Scales[4*((int(j.Expert)*blocks+g)*capacity+int(j.Pos)):],
			[]byte{byte(s), byte(s >> 8), byte(s >> 16), byte(s >> 24)})
	}
}

func TestPlaceShapes(t *testing.T) {
	const experts, capacity, tokens, numTargets = 3, 5, 4, 2
	jobs := []device.PlaceJob{ // token 2 goes nowhere, token 0 twice to one target
		{Token: 0, Target: 1, Expert: 2, Pos: 4},
		{Token: 0, Target: 1, Expert: 0, Pos: 0},
		{Token: 1, Target: 0, Expert: 1, Pos: 3},
		{Token: 3, Target: 0, Expert: 1, Pos: 0},
		{Token: 3, Target: 1, Expert: 0, Pos: 1},
	}
	for _, cast := range []bool{false, true} {
		for _, hidden := range []int{8, 24, 72, 128, 384, 512, 1032, 1536, 7168} {
			if cast && hidden%protocol.QuantBlock != 0 {
				continue
			}
			t.Run(fmt.Sprintf("cast=%v/hidden=%d", cast, hidden), func(t *testing.T) {
				r := newRand(t)
				values := make([]uint16, tokens*hidden)
				for i := range values {
					values[i] = activation(r)
				}
				b := &device.PlaceBatch{
					X: offHeapBF16(t, values), Hidden: hidden, RowType: rowType(cast), Jobs: jobs,
					Targets: slabs(t, numTargets, experts, capacity, hidden, cast),
				}
				placeAndCheck(t, b, experts)
			})
		}
	}
}

// placeAndCheck runs the batch in every format that its hidden size allows.
func placeAndCheck(t *testing.T, b *device.PlaceBatch, experts int) {
	t.Helper()
	types := formats(b.Hidden)
	if !b.RowType.IsFP8() {
		types = []protocol.DType{b.RowType}
	}
	for _, b.RowType = range types {
		for _, k := range all(t) {
			for i := range b.Targets {
				clearTarget(&b.Targets[i])
			}
			k.Place(b)
			checkPlaced(t, fmt.Sprintf("%s, %s", k.Name(), b.RowType.Scales()), b, experts)
		}
	}
}

// Every bf16 bit pattern against a range of scales: for each amax, blocks that
// contain it once and otherwise every pattern of at most its magnitude.
func TestCastEveryPattern(t *testing.T) {
	amaxes := []uint16{
		0x0000, 0x0001, 0x007f, 0x38d1, 0x38d2, 0x3c00, 0x3f80, 0x3fab, 0x43e0,
		0x43e1, 0x4479, 0x7f7f, 0x7f80, 0x7f81, 0x7fc0, 0x7fff,
	}
	for i, amax := range amaxes {
		if testing.Short() && i%4 != 3 {
			continue
		}
		t.Run(fmt.Sprintf("amax=%#04x", amax), func(t *testing.T) {
			values := []uint16{amax}
			for m := uint32(0); m <= uint32(amax); m++ {
				for _, sign := range []uint32{0, 0x8000} {
					if len(values)%128 == 0 {
						values = append(values, amax)
					}
					values = append(values, uint16(m|sign))
				}
			}
			for len(values)%128 != 0 {
				values = append(values, 0)
			}
			castOneRow(t, values)
		})
	}
}

// castOneRow places the values as one long row in a single slab; they are made
// a multiple of 512, so that every format takes them.
func castOneRow(t *testing.T, values []uint16) {
	t.Helper()
	for len(values)%512 != 0 {
		values = append(values, values[len(values)-128])
	}
	b := &device.PlaceBatch{
		X: offHeapBF16(t, values), Hidden: len(values), RowType: protocol.FP8,
		Targets: slabs(t, 1, 1, 1, len(values), true),
		Jobs:    []device.PlaceJob{{}},
	}
	placeAndCheck(t, b, 1)
}

// Blocks of values that fall on midpoints between codes once scaled, on both
// sides of zero: amax 448 makes the scale 1.
func TestCastMidpoints(t *testing.T) {
	var values []uint16
	for code := range 0x7e {
		if code%64 == 0 {
			for len(values)%128 != 0 {
				values = append(values, 0)
			}
			values = append(values, 0x43e0)
		}
		m := toBF16(float32((oracleE4M3(code) + oracleE4M3(code+1)) / 2))
		values = append(values, m, m|0x8000)
		if code%64 == 62 {
			for len(values)%128 != 0 {
				values = append(values, m)
			}
		}
	}
	for len(values)%128 != 0 {
		values = append(values, 0)
	}
	castOneRow(t, values)
}

func TestCastRandom(t *testing.T) {
	r := newRand(t)
	for range 20 {
		values := make([]uint16, 128*(1+r.IntN(60)))
		draw := activation
		if r.IntN(2) == 0 {
			draw = anyBF16
		}
		for i := range values {
			values[i] = draw(r)
		}
		castOneRow(t, values)
	}
}

// The special blocks of the contract, spelled out.
func TestCastSpecialBlocks(t *testing.T) {
	const f32, pow2, ue8m0 = protocol.FP8, protocol.FP8Pow2, protocol.FP8UE8M0
	tests := []struct {
		name      string
		format    protocol.DType
		first     uint16 // value 0; value 1 is 1.0, value 2 is -1.0, others 0
		want      [4]byte
		wantScale uint32
	}{
		{"zeros and ones", f32, 0x0000, [4]byte{0x00, 0x7e, 0xfe, 0x00}, 0x3b124925},
		{"infinity", f32, 0x7f80, [4]byte{0x7f, 0x00, 0x80, 0x00}, 0x7f800000},
		{"minus infinity", f32, 0xff80, [4]byte{0x7f, 0x00, 0x80, 0x00}, 0x7f800000},
		{"NaN", f32, 0x7fc0, [4]byte{0x7f, 0x7f, 0x7f, 0x7f}, 0x7fc00000},
		{"signalling negative NaN", f32, 0xff81, [4]byte{0x7f, 0x7f, 0x7f, 0x7f}, 0x7fc00000},
		// 1/448 rounds up to 2^-8, which makes 256 of 1.
		{"zeros and ones", pow2, 0x0000, [4]byte{0x00, 0x78, 0xf8, 0x00}, 0x3b800000},
		// 448 needs exactly 1, the next bf16 needs 2.
		{"448", pow2, 0x43e0, [4]byte{0x7e, 0x38, 0xb8, 0x00}, 0x3f800000},
		{"450", pow2, 0x43e1, [4]byte{0x76, 0x30, 0xb0, 0x00}, 0x40000000},
		{"infinity", pow2, 0x7f80, [4]byte{0x7f, 0x00, 0x80, 0x00}, 0x7f800000},
		{"NaN", pow2, 0xffc0, [4]byte{0x7f, 0x7f, 0x7f, 0x7f}, 0x7fc00000},
		// The other blocks hold zeros: float32(1e-4) needs 2^-22, byte 105.
		{"zeros and ones", ue8m0, 0x0000, [4]byte{0x00, 0x78, 0xf8, 0x00}, 0x69696977},
		{"450", ue8m0, 0x43e1, [4]byte{0x76, 0x30, 0xb0, 0x00}, 0x69696980},
		{"largest", ue8m0, 0x7f7f, [4]byte{0x78, 0x00, 0x80, 0x00}, 0x696969f7},
		{"infinity", ue8m0, 0x7f80, [4]byte{0x7f, 0x00, 0x80, 0x00}, 0x696969ff},
		{"NaN", ue8m0, 0xffc0, [4]byte{0x7f, 0x7f, 0x7f, 0x7f}, 0x696969ff},
	}
	for _, tt := range tests {
		values := make([]uint16, 512)
		values[0], values[1], values[2] = tt.first, 0x3f80, 0xbf80
		b := &device.PlaceBatch{
			X: offHeapBF16(t, values), Hidden: 512, RowType: tt.format,
			Targets: slabs(t, 1, 1, 1, 512, true), Jobs: []device.PlaceJob{{}},
		}
		for _, k := range all(t) {
			k.Place(b)
			if got := [4]byte(b.Targets[0].Rows); got != tt.want {
				t.Errorf("%s, %s, %s: codes % x, want % x", k.Name(), tt.format.Scales(), tt.name, got, tt.want)
			}
			if got := u32At(b.Targets[0].Scales, 0); got != tt.wantScale {
				t.Errorf("%s, %s, %s: scale %#08x, want %#08x", k.Name(), tt.format.Scales(), tt.name, got, tt.wantScale)
			}
		}
	}
}
