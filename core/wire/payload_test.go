package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// payloadSizes are those around the seams between chunks.
var payloadSizes = []int{0, 1, 15, 16, 17, ChunkBytes - 1, ChunkBytes, ChunkBytes + 1, 2 * ChunkBytes, 3*ChunkBytes + 77}

// cut cuts memory into pieces at random, some of them empty.
func cut(src *rand.Rand, b []byte) [][]byte {
	var list [][]byte
	for len(b) > 0 {
		n := min(len(b), src.IntN(2)*src.IntN(2*ChunkBytes)+src.IntN(40))
		list = append(list, b[:n:n])
		b = b[n:]
	}
	return append(list, nil)
}

// checkDigest passes a payload through a Digest in pieces.
func checkDigest(d *Digest, head *Head, pieces [][]byte) error {
	d.Begin(head)
	for _, p := range pieces {
		d.Write(p)
	}
	return d.Check()
}

// WF5, WF9: a payload is the same however it is cut, on either side, and the
// pieces are not kept.
func TestWF5DigestOfPieces(t *testing.T) {
	src := newRand(t)
	client, server := sessions(t)
	digest := server.NewDigest()
	for _, size := range payloadSizes {
		payload := noise(uint64(size), size)
		for range 5 {
			head := Head{Code: 1}
			_, err := client.Seal(nil, &head, cut(src, payload)...)
			require.NoError(t, err)
			require.NoError(t, checkDigest(digest, &head, cut(src, payload)), size)
		}
	}
}

// WF3: a payload in which a bit is different is refused and counted, and so is
// one that is too short, too long, in another order, or another message's.
func TestWF3PayloadBits(t *testing.T) {
	src := newRand(t)
	client, server := sessions(t)
	digest := server.NewDigest()
	bad := uint64(0)
	refuse := func(head *Head, payload []byte) {
		t.Helper()
		bad++
		require.ErrorIs(t, checkDigest(digest, head, cut(src, payload)), ErrPayload)
		require.Equal(t, bad, server.counters.Refused(ErrPayload))
	}
	for _, size := range payloadSizes[1:] {
		payload := noise(uint64(size), size)
		head, other := Head{Code: 1}, Head{Code: 1}
		_, err := client.Seal(nil, &head, payload)
		require.NoError(t, err)
		_, err = client.Seal(nil, &other, payload)
		require.NoError(t, err)
		require.NotEqual(t, head.digest, other.digest, "the sequence number is part of it")
		for _, bit := range bits(src, size) {
			payload[bit/8] ^= 1 << (bit % 8)
			refuse(&head, payload)
			payload[bit/8] ^= 1 << (bit % 8)
		}
		refuse(&head, payload[:size-1])
		refuse(&head, append(clone(payload), 0))
		refuse(&head, nil)
		require.NoError(t, checkDigest(digest, &head, [][]byte{payload}))
	}
}

// WF3: what cancels out in a linear sum of tags must not cancel out here.
func TestWF3ChunksDoNotCancelOut(t *testing.T) {
	client, server := sessions(t)
	payload := noise(3, 4*ChunkBytes)
	head := Head{Code: 1}
	_, err := client.Seal(nil, &head, payload)
	require.NoError(t, err)
	swapped := append(clone(payload[ChunkBytes:2*ChunkBytes]), payload[:ChunkBytes]...)
	swapped = append(swapped, payload[2*ChunkBytes:]...)
	require.ErrorIs(t, checkDigest(server.NewDigest(), &head, [][]byte{swapped}), ErrPayload)
	payload[5] ^= 0x40
	payload[ChunkBytes+5] ^= 0x40
	require.ErrorIs(t, checkDigest(server.NewDigest(), &head, [][]byte{payload}), ErrPayload)
}

// bits are all bits of a short payload, and some of a long one.
func bits(src *rand.Rand, size int) []int {
	if size <= 17 {
		return src.Perm(size * 8)
	}
	return []int{0, size*8 - 1, src.IntN(size * 8), src.IntN(size * 8)}
}

// encrypted is what follows the frame of a payload, made in small portions.
func encrypted(t *testing.T, s *Session, head *Head, payload [][]byte) []byte {
	t.Helper()
	_, err := s.Seal(nil, head, payload...)
	require.NoError(t, err)
	e := s.NewEncryptor()
	e.Begin(head, payload)
	var wire []byte
	room := make([]byte, 0, EncryptedChunkBytes+100)
	for e.left > 0 {
		wire = append(wire, e.Next(room)...)
	}
	require.Equal(t, s.PayloadWireBytes(head), int64(len(wire)))
	return wire
}

func encrypting(c *Config) { c.Protection = ProtectEncrypt }

// decrypt passes what follows a frame through a Decryptor in pieces.
func decrypt(d *Decryptor, head *Head, into [][]byte, wire [][]byte) error {
	if err := d.Begin(head, into); err != nil {
		return err
	}
	for _, p := range wire {
		if err := d.Write(p); err != nil {
			return err
		}
	}
	return d.Check()
}

// WF5, WF9: what is encrypted is what is decrypted, however it is cut at the
// sender, on the way and at the receiver.
func TestWF5EncryptedPieces(t *testing.T) {
	src := newRand(t)
	client, server := sessions(t, encrypting)
	d := server.NewDecryptor()
	for _, size := range payloadSizes {
		payload := noise(uint64(size), size)
		for range 5 {
			head, into := Head{Code: 1}, make([]byte, size+10)
			wire := encrypted(t, client, &head, cut(src, payload))
			require.NoError(t, decrypt(d, &head, cut(src, into), cut(src, wire)))
			require.True(t, bytes.Equal(payload, into[:size]), size)
			require.Equal(t, make([]byte, 10), into[size:], "nothing lies behind it")
		}
	}
}

// Chunks that lie whole in memory go straight to their place.
func TestEncryptedWithoutSeams(t *testing.T) {
	client, server := sessions(t, encrypting)
	payload, into := noise(1, 3*ChunkBytes), make([]byte, 3*ChunkBytes)
	head := Head{Code: 1}
	wire := encrypted(t, client, &head, [][]byte{payload})
	require.NoError(t, decrypt(server.NewDecryptor(), &head, [][]byte{into}, [][]byte{wire}))
	require.True(t, bytes.Equal(payload, into))
}

// WF3: an encrypted payload that was altered, cut, lengthened, put in another
// order or belongs to another message is refused.
func TestWF3EncryptedBits(t *testing.T) {
	src := newRand(t)
	client, server := sessions(t, encrypting)
	d := server.NewDecryptor()
	bad := uint64(0)
	refuse := func(head *Head, size int, wire []byte) {
		t.Helper()
		bad++
		err := decrypt(d, head, cut(src, make([]byte, size)), cut(src, wire))
		require.ErrorIs(t, err, ErrPayload)
		require.ErrorIs(t, d.Check(), ErrPayload, "it stays so")
		require.ErrorIs(t, d.Write([]byte{1}), ErrPayload, "it stays so")
		require.Equal(t, bad, server.counters.Refused(ErrPayload), "counted once")
	}
	for _, size := range payloadSizes[1:] {
		payload := noise(uint64(size), size)
		head, other := Head{Code: 1}, Head{Code: 1}
		wire := encrypted(t, client, &head, [][]byte{payload})
		next := encrypted(t, client, &other, [][]byte{payload})
		for _, bit := range bits(src, len(wire)) {
			wire[bit/8] ^= 1 << (bit % 8)
			refuse(&head, size, wire)
			wire[bit/8] ^= 1 << (bit % 8)
		}
		refuse(&head, size, wire[:len(wire)-1])
		refuse(&head, size, append(clone(wire), 0))
		refuse(&head, size, nil)
		refuse(&head, size, next)
		if size >= 2*ChunkBytes {
			swapped := append(clone(wire[EncryptedChunkBytes:2*EncryptedChunkBytes]), wire[:EncryptedChunkBytes]...)
			refuse(&head, size, append(swapped, wire[2*EncryptedChunkBytes:]...))
		}
		require.NoError(t, decrypt(d, &head, [][]byte{make([]byte, size)}, [][]byte{wire}))
	}
}

// A place that is too small is refused before anything is written.
func TestDecryptorWantsRoom(t *testing.T) {
	client, server := sessions(t, encrypting)
	head := Head{Code: 1}
	encrypted(t, client, &head, [][]byte{make([]byte, 10)})
	require.ErrorIs(t, server.NewDecryptor().Begin(&head, [][]byte{make([]byte, 4), make([]byte, 5)}), ErrLength)
}

// A payload whose first chunk says where the others go ends up there; a chunk that no
// place was told for is refused.
func TestDecryptorPlaceByPlace(t *testing.T) {
	src := newRand(t)
	client, server := sessions(t, encrypting)
	d := server.NewDecryptor()
	payload := noise(1, 2*ChunkBytes+77)
	head, first, rest := Head{Code: 1}, make([]byte, ChunkBytes), make([]byte, ChunkBytes+77)
	wire := encrypted(t, client, &head, [][]byte{payload})
	d.BeginApart(&head)
	d.Into([][]byte{first})
	require.NoError(t, d.Write(wire[:EncryptedChunkBytes]))
	d.Into(cut(src, rest))
	require.NoError(t, d.Write(wire[EncryptedChunkBytes:]))
	require.NoError(t, d.Check())
	require.True(t, bytes.Equal(payload, append(first, rest...)))

	d.BeginApart(&head)
	d.Into([][]byte{first})
	require.ErrorIs(t, d.Write(wire), ErrPayload)
	require.NoError(t, d.Begin(&head, [][]byte{make([]byte, len(payload))}), "it may be used again")
	require.NoError(t, d.Write(wire))
	require.NoError(t, d.Check())
}

// What is encrypted can neither be read nor recognised.
func TestEncryptedIsNotReadable(t *testing.T) {
	client, _ := sessions(t, encrypting)
	payload := make([]byte, 2*ChunkBytes)
	head, other := Head{Code: 1}, Head{Code: 1}
	wire, next := encrypted(t, client, &head, [][]byte{payload}), encrypted(t, client, &other, [][]byte{payload})
	require.False(t, bytes.Equal(wire, next))
	require.False(t, bytes.Equal(wire[:ChunkBytes], wire[EncryptedChunkBytes:EncryptedChunkBytes+ChunkBytes]))
	require.False(t, bytes.Contains(wire, make([]byte, 16)))
	require.Zero(t, head.digest, "a digest would tell equal payloads")
}

// An Encryptor has no room, then it has.
func TestEncryptorWaitsForRoom(t *testing.T) {
	client, _ := sessions(t, encrypting)
	head, payload := Head{Code: 1}, [][]byte{make([]byte, ChunkBytes+1)}
	_, err := client.Seal(nil, &head, payload...)
	require.NoError(t, err)
	e := client.NewEncryptor()
	e.Begin(&head, payload)
	require.Empty(t, e.Next(make([]byte, 0, EncryptedChunkBytes-1)))
	require.Len(t, e.Next(make([]byte, 0, EncryptedChunkBytes)), EncryptedChunkBytes)
	require.NotZero(t, e.left)
	require.Len(t, e.Next(make([]byte, 0, 17)), 17)
	require.Zero(t, e.left)
	require.Empty(t, e.Next(make([]byte, 0, 100)))
}
