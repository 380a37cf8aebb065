package record

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/tag"
)

func secretOf(rng *rand.Rand) (s Secret) {
	fill(rng, s[:])
	return s
}

func fill(rng *rand.Rand, p []byte) {
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
}

func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	secret := secretOf(rng)
	for _, keyBytes := range []int{1, 2, 36, 64, 100, MaxKeyBytes} {
		h := Header{Seq: rng.Uint64(), PayloadBytes: rng.Uint32(), Key: make([]byte, keyBytes)}
		fill(rng, h.Key)
		fill(rng, h.Namespace[:])
		fill(rng, h.Parent[:])
		fill(rng, h.Tag[:])
		at := Place{rng.Uint64(), rng.Int64N(1<<40) * PageBytes}
		buf := bytes.Repeat([]byte{0xff}, int(PayloadOff(keyBytes)))
		secret.Put(buf, at, &h)
		got, err := secret.Get(buf, at)
		require.NoError(t, err)
		require.Equal(t, h, got)
		for _, other := range []Place{{at.Life + 1, at.Off}, {at.Life, at.Off + PageBytes}} {
			_, err := secret.Get(buf, other)
			require.ErrorIs(t, err, ErrNone)
		}
		for bit := range 8 * (HeaderBytes + keyBytes) {
			buf[bit/8] ^= 1 << (bit % 8)
			_, err := secret.Get(buf, at)
			require.ErrorIs(t, err, ErrNone, "bit %d", bit)
			buf[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		keyBytes         int
		payload, off, of int64
	}{
		{1, 0, 192, 4096}, {64, 0, 192, 4096}, {65, 3840, 256, 4096}, {65, 3841, 256, 8192},
		{512, 65536, 640, 69632}, {36, 1 << 20, 192, 1<<20 + 4096},
	} {
		require.Equal(t, c.off, PayloadOff(c.keyBytes))
		require.Equal(t, c.of, Bytes(c.keyBytes, c.payload))
	}
}

// TestHashes: of other namespaces, keys or secrets, and where one namespace's bytes end and the key's begin.
func TestHashes(t *testing.T) {
	var a, b Secret
	b[0] = 1
	var n, m Digest
	m[31] = 1
	seen := map[Hash]string{}
	for name, h := range map[string]Hash{
		"key": a.Hash(&n, []byte("key")), "other key": a.Hash(&n, []byte("kez")), "longer": a.Hash(&n, []byte("key\x00")),
		"other namespace": a.Hash(&m, []byte("key")), "other secret": b.Hash(&n, []byte("key")),
	} {
		require.Empty(t, seen[h], name)
		seen[h] = name
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { a.Hash(&n, make([]byte, 36)) }))
}

// TestHashesOfANamespace are what each hash would be alone, also if others are made meanwhile.
func TestHashesOfANamespace(t *testing.T) {
	var all sync.WaitGroup
	for i := range 4 {
		rng := rand.New(rand.NewPCG(testenv.Seed(t), uint64(i)))
		secret := secretOf(rng)
		var n Digest
		fill(rng, n[:])
		all.Go(func() {
			hashes := secret.Hashes(&n)
			key := make([]byte, MaxKeyBytes)
			for size := range MaxKeyBytes + 1 {
				fill(rng, key[:size])
				if hashes.Of(key[:size]) != secret.Hash(&n, key[:size]) {
					t.Errorf("another hash of a key of %d bytes", size)
				}
			}
			keys := make([][]byte, 33)
			for i := range keys {
				keys[i] = key[i : i+1+rng.IntN(60)]
			}
			next := 0
			hashes.Each(keys, func(i int, h Hash) {
				if i != next || h != secret.Hash(&n, keys[i]) {
					t.Errorf("key %d of several, for key %d, has another hash", i, next)
				}
				next++
			})
			if next != len(keys) {
				t.Errorf("%d of %d keys", next, len(keys))
			}
		})
	}
	all.Wait()
}

func footerOf(rng *rand.Rand, numEntries, numNamespaces int) *Footer {
	f := &Footer{Seq: rng.Uint64(), Namespaces: make([]Digest, numNamespaces), Entries: make([]Entry, numEntries)}
	for i := range f.Namespaces {
		fill(rng, f.Namespaces[i][:])
	}
	for i := range f.Entries {
		e := &f.Entries[i]
		fill(rng, e.Hash[:])
		fill(rng, e.Parent[:])
		e.Stamp, e.Off, e.PayloadBytes = rng.Uint64(), rng.Uint32()|1, rng.Uint32()
		e.Namespace, e.KeyBytes = uint16(rng.IntN(numNamespaces)), uint16(rng.IntN(MaxKeyBytes))
	}
	return f
}

func TestFooter(t *testing.T) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 2))
	secret := secretOf(rng)
	for _, n := range []int{0, 1, 71, 72, 400} {
		f := footerOf(rng, n, 3)
		out := secret.PutFooter(9, f)
		require.Zero(t, len(out)%PageBytes)
		require.EqualValues(t, FooterBytes(n, 3), len(out))
		tail, err := GetTail(out[len(out)-PageBytes:], 9, 64<<20)
		require.NoError(t, err)
		require.Equal(t, f.Tail(), tail)
		got, err := secret.GetFooter(out, tail)
		require.NoError(t, err)
		require.Equal(t, f, got)
		everyBitOfFooter(t, secret, out, f)
		_, err = GetTail(out[len(out)-PageBytes:], 8, 64<<20)
		require.ErrorIs(t, err, ErrNone)
		_, err = GetTail(out[len(out)-PageBytes:], 9, PageBytes)
		require.ErrorIs(t, err, ErrNone)
		for i := range f.Entries { // a deleted block's mark is overwritten in place
			at := int64(len(out)) - tail.MarkOff(i)
			copy(out[at:], Dead)
			require.Equal(t, f.Entries[i], GetEntry(out[int64(len(out))-tail.EntryOff(i):]))
			f.Entries[i].Off = 0
			got, err := secret.GetFooter(out, tail)
			require.NoError(t, err)
			require.Equal(t, f.Entries, got.Entries)
		}
	}
}

// everyBitOfFooter flips all bits of a footer, or some in a short run and of one of many entries: there is no footer then, and of a mark there is a dead
// block that counts as damaged.
func everyBitOfFooter(t *testing.T, secret Secret, out []byte, f *Footer) {
	step := 1
	if len(f.Entries) > 72 || testing.Short() {
		step = 31
	}
	marks := len(f.Entries)*EntryBytes + len(f.Namespaces)*digestBytes
	for bit := 0; bit < 8*len(out); bit += step {
		out[bit/8] ^= 1 << (bit % 8)
		got, err := secret.footerIn(out)
		if i := bit/8 - marks; i >= 0 && i < len(f.Entries) {
			want := f.Entries[i]
			want.Off = 0
			require.NoError(t, err, "bit %d", bit)
			require.Equal(t, want, got.Entries[i], "bit %d", bit)
			require.Equal(t, 1, got.NumDamaged, "bit %d", bit)
		} else {
			require.ErrorIs(t, err, ErrNone, "bit %d", bit)
		}
		out[bit/8] ^= 1 << (bit % 8)
	}
}

// footerIn reads the footer at the end of a segment of life 9.
func (s *Secret) footerIn(segment []byte) (*Footer, error) {
	tail, err := GetTail(segment[len(segment)-PageBytes:], 9, 64<<20)
	if err != nil || tail.Bytes() > int64(len(segment)) {
		return nil, ErrNone
	}
	return s.GetFooter(segment[int64(len(segment))-tail.Bytes():], tail)
}

func TestSegment(t *testing.T) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 3))
	secret, page := secretOf(rng), make([]byte, PageBytes)
	want := Segment{Life: rng.Uint64(), Bytes: 1 << 20}
	secret.PutSegment(page, want)
	got, err := secret.GetSegment(page, 1<<20)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = secret.GetSegment(page, 2<<20)
	require.ErrorIs(t, err, ErrNone)
	other := secretOf(rng)
	_, err = other.GetSegment(page, 1<<20)
	require.ErrorIs(t, err, ErrNone)
	for bit := range 8 * PageBytes {
		page[bit/8] ^= 1 << (bit % 8)
		_, err := secret.GetSegment(page, 1<<20)
		require.ErrorIs(t, err, ErrNone, "bit %d", bit)
		page[bit/8] ^= 1 << (bit % 8)
	}
}

// FuzzGet: whatever is read from a disk, nothing but what was written is a record.
func FuzzGet(f *testing.F) {
	secret := Secret{1}
	good := make([]byte, 1024)
	secret.Put(good, Place{1, PageBytes}, &Header{Key: []byte("key"), Tag: tag.Tag{2}, PayloadBytes: 7})
	f.Add(good)
	footer := secret.PutFooter(1, &Footer{Namespaces: make([]Digest, 1), Entries: make([]Entry, 2)})
	f.Add(footer)
	page := make([]byte, PageBytes)
	secret.PutSegment(page, Segment{1, 1 << 20})
	f.Add(page)
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := secret.Get(data, Place{1, PageBytes}); err == nil {
			again := make([]byte, PayloadOff(len(h.Key)))
			secret.Put(again, Place{1, PageBytes}, &h)
			_, err := secret.Get(again, Place{1, PageBytes})
			require.NoError(t, err)
		}
		_, _ = secret.GetSegment(data, 1<<20)
		if len(data) < PageBytes {
			return
		}
		tail, err := GetTail(data[len(data)-PageBytes:], 1, 1<<20)
		if err == nil && tail.Bytes() <= int64(len(data)) {
			_, _ = secret.GetFooter(data[int64(len(data))-tail.Bytes():], tail)
		}
	})
}
