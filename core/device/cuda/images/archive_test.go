package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cubin is something that looks like one.
func cubin(text string) []byte {
	head := make([]byte, elfBytes)
	copy(head, elfMark)
	binary.LittleEndian.PutUint16(head[elfMachine:], elfCUDA)
	return append(head, text...)
}

func ptx(text string) []byte { return []byte("//\n.version 8.0\n" + text + "\x00") }

func some() []Image {
	return []Image{
		{Target: "sm_80", Compiler: "NVRTC 12.9", Code: cubin("eighty")},
		{Target: "sm_90", Compiler: "NVRTC 12.9", Code: cubin(strings.Repeat("ninety", 1000))},
		{Target: "compute_80", Compiler: "NVRTC 12.0", Code: ptx("add")},
	}
}

func packed(t testing.TB, images ...Image) []byte {
	data, err := Pack("source", images)
	require.NoError(t, err)
	return data
}

// sealed is an archive of a header and a frame as they are.
func sealed(head string, frame []byte) []byte {
	out := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(head)))
	out = append(append(out, head...), frame...)
	sum := sha256.Sum256(out)
	return append(out, sum[:]...)
}

func TestArchive(t *testing.T) {
	data := packed(t, some()...)
	assert.Equal(t, data, packed(t, some()...), "not the same bytes again")
	assert.Less(t, len(data), 2000, "not compressed")
	images, err := Unpack(data, "source")
	require.NoError(t, err)
	want := some()
	for i := range want {
		want[i].NumBytes = len(want[i].Code)
	}
	assert.Equal(t, want, images)
}

// TestDamagedArchive: every cut and every byte that differs is noticed.
func TestDamagedArchive(t *testing.T) {
	data := packed(t, some()...)
	for n := range data {
		_, err := Unpack(data[:n], "source")
		require.ErrorIs(t, err, ErrArchive, "cut at %d", n)
		bad := bytes.Clone(data)
		bad[n] ^= 1 << (n % 8)
		_, err = Unpack(bad, "source")
		require.ErrorIs(t, err, ErrArchive, "byte %d differs", n)
	}
	_, err := Unpack(append(bytes.Clone(data), 0), "source")
	require.ErrorIs(t, err, ErrArchive)
}

// TestForeignArchive: what is whole, but not what we would make.
func TestForeignArchive(t *testing.T) {
	data := packed(t, some()...)
	h, frame, err := open(data)
	require.NoError(t, err)
	const one = `{"source":"source","images":[{"target":"sm_90","num_bytes":%d}]}`
	for want, bad := range map[string][]byte{
		"so it is something else":  append([]byte("PK\x03\x04"), data...),
		"made of other sources":    packedOf(t, "other"),
		"cut off":                  data[:20],
		"a header of 4294967295":   append(binary.LittleEndian.AppendUint32([]byte(magic), 1<<32-1), data[12:]...),
		"unexpected end of JSON":   sealed("{", nil),
		"0 images":                 sealed("{}", nil),
		"65 images":                sealed(`{"images":[`+strings.Repeat(`{"target":"sm_90"},`, 64)+`{}]}`, nil),
		"sm_90 has 0 bytes":        sealed(fmt.Sprintf(one, 0), nil),
		"sm_90 has -1 bytes":       sealed(fmt.Sprintf(one, -1), nil),
		"sm_90 has 8388609":        sealed(fmt.Sprintf(one, maxImageBytes+1), nil),
		"is no target":             sealed(`{"images":[{"target":"sm_90a","num_bytes":1}]}`, nil),
		"sm_80 twice":              sealed(`{"images":[{"target":"sm_80","num_bytes":1},{"target":"sm_80","num_bytes":1}]}`, nil),
		"bytes of code, not the 7": sealed(fmt.Sprintf(one, 7), nil),
		"archive of kernels: ":     sealed(fmt.Sprintf(one, 100), frame), // the code is longer
		"17000000 bytes, at most":  make([]byte, 17000000),
	} {
		if strings.HasPrefix(want, "a header") { // whole, too
			sum := sha256.Sum256(bad[:len(bad)-32])
			copy(bad[len(bad)-32:], sum[:])
		}
		_, err := Unpack(bad, "source")
		require.ErrorIs(t, err, ErrArchive, want)
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, "source", h.Source)
}

func packedOf(t *testing.T, source string) []byte {
	data, err := Pack(source, some())
	require.NoError(t, err)
	return data
}

// TestCodeOfAnotherKind is not packed, and not taken.
func TestCodeOfAnotherKind(t *testing.T) {
	for _, c := range []struct {
		target string
		code   []byte
	}{
		{"sm_90", ptx("")}, {"compute_80", cubin("")}, {"compute_80", []byte("\n.version 8.0\n")},
		{"compute_80", []byte("\n.version 8.0\n\x00more\x00")}, {"compute_80", []byte("text\x00")},
		{"sm_90", []byte(elfMark)}, {"sm_90", bytes.Repeat([]byte(elfMark), 20)},
	} {
		_, err := Pack("source", []Image{{Target: c.target, Code: c.code}})
		require.ErrorIs(t, err, ErrArchive)
		require.ErrorContains(t, err, "what it has for "+c.target)
	}
	for _, bad := range [][]Image{nil, {{Target: "sm_9", Code: cubin("")}}, {{Target: "sm_90"}}, append(some(), some()[0])} {
		_, err := Pack("source", bad)
		require.ErrorIs(t, err, ErrArchive)
	}
}

// FuzzUnpack: whatever the bytes are, an error or images that pack again. Those
// that begin like an archive get a digest that fits, to come further.
func FuzzUnpack(f *testing.F) {
	data := packed(f, some()...)
	f.Add(data)
	f.Add(data[:40])
	f.Add(sealed(`{"source":"source","images":[{"target":"sm_90","num_bytes":100}]}`, []byte("frame")))
	f.Fuzz(func(t *testing.T, data []byte) {
		check(t, data)
		if len(data) > sha256.Size {
			data = bytes.Clone(data)
			copy(data, magic)
			sum := sha256.Sum256(data[:len(data)-sha256.Size])
			copy(data[len(data)-sha256.Size:], sum[:])
			check(t, data)
		}
	})
}

func check(t *testing.T, data []byte) {
	images, err := Unpack(data, "source")
	if err != nil {
		require.ErrorIs(t, err, ErrArchive)
		require.Nil(t, images)
		return
	}
	again, err := Unpack(packed(t, images...), "source")
	require.NoError(t, err)
	require.Equal(t, images, again)
}
