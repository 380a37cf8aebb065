package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// An archive is, in this order: magic, the header's length as a little-endian
// uint32, the header in JSON, a zstd frame of all code in the header's order,
// and the SHA-256 of all that.
const magic = "MOEWKRN1"

// Bounds of what is taken for an archive.
const (
	maxArchiveBytes = 16 << 20
	maxHeaderBytes  = 64 << 10
	maxImages       = 64
	maxImageBytes   = 8 << 20
	maxCodeBytes    = 64 << 20 // of all images
)

// ErrArchive is what is wrong with an archive, or with what is taken for one.
var ErrArchive = errors.New("archive of kernels")

// Image is code for one target.
type Image struct {
	Target   string `json:"target"`   // "sm_90": a cubin; "compute_80": PTX with a terminating zero
	Compiler string `json:"compiler"` // such as "NVRTC 12.9"
	NumBytes int    `json:"num_bytes"`
	Code     []byte `json:"-"`
}

type header struct {
	Source string  `json:"source"` // kernels.Digest of what the code was made of
	Images []Image `json:"images"`
}

// Pack makes an archive of code that was made of the sources with a digest.
// The same code gives the same bytes.
func Pack(source string, images []Image) ([]byte, error) {
	h := header{Source: source}
	var code []byte
	for _, image := range images {
		image.NumBytes = len(image.Code)
		h.Images = append(h.Images, image)
		code = append(code, image.Code...)
	}
	if err := errors.Join(h.check(), checkCode(h.Images)); err != nil {
		return nil, err
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	out := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(text)))
	out = enc.EncodeAll(code, append(out, text...))
	sum := sha256.Sum256(out)
	if out = append(out, sum[:]...); len(out) > maxArchiveBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrArchive, len(out), maxArchiveBytes)
	}
	return out, nil
}

// Unpack reads an archive, which it checks from end to end. Code is of the
// sources with the digest, or an error.
func Unpack(data []byte, source string) ([]Image, error) {
	h, frame, err := open(data)
	if err != nil {
		return nil, err
	}
	if h.Source != source {
		return nil, fmt.Errorf("%w: made of other sources (%.12s) than these (%.12s)", ErrArchive, h.Source, source)
	}
	return h.decode(frame)
}

// open checks an archive's frame.
func open(data []byte) (h header, frame []byte, err error) {
	const fixed = len(magic) + 4
	switch {
	case len(data) > maxArchiveBytes:
		return h, nil, fmt.Errorf("%w: %d bytes, at most %d", ErrArchive, len(data), maxArchiveBytes)
	case !bytes.HasPrefix(data, []byte(magic)):
		return h, nil, fmt.Errorf("%w: it does not begin with %q, so it is something else", ErrArchive, magic)
	case len(data) < fixed+sha256.Size:
		return h, nil, fmt.Errorf("%w: %d bytes, cut off", ErrArchive, len(data))
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return h, nil, fmt.Errorf("%w: damaged: its digest is %.12s, not %.12s", ErrArchive,
			hex.EncodeToString(got[:]), hex.EncodeToString(sum))
	}
	n := binary.LittleEndian.Uint32(data[len(magic):])
	if n > maxHeaderBytes || int(n) > len(body)-fixed {
		return h, nil, fmt.Errorf("%w: a header of %d bytes in %d", ErrArchive, n, len(body))
	}
	if err := json.Unmarshal(body[fixed:fixed+int(n)], &h); err != nil {
		return h, nil, fmt.Errorf("%w: header: %w", ErrArchive, err)
	}
	return h, body[fixed+int(n):], h.check()
}

// check looks at names and sizes.
func (h *header) check() error {
	if len(h.Images) == 0 || len(h.Images) > maxImages {
		return fmt.Errorf("%w: %d images, 1 to %d are possible", ErrArchive, len(h.Images), maxImages)
	}
	seen, total := map[string]bool{}, 0
	for _, image := range h.Images {
		if _, err := parseTarget(image.Target); err != nil {
			return fmt.Errorf("%w: %w", ErrArchive, err)
		}
		if seen[image.Target] {
			return fmt.Errorf("%w: %s twice", ErrArchive, image.Target)
		}
		seen[image.Target] = true
		if image.NumBytes < 1 || image.NumBytes > maxImageBytes {
			return fmt.Errorf("%w: %s has %d bytes, 1 to %d are possible", ErrArchive, image.Target, image.NumBytes, maxImageBytes)
		}
		total += image.NumBytes
	}
	if total > maxCodeBytes {
		return fmt.Errorf("%w: %d bytes of code, at most %d", ErrArchive, total, maxCodeBytes)
	}
	return nil
}

func (h *header) decode(frame []byte) ([]Image, error) {
	total := 0
	for _, image := range h.Images {
		total += image.NumBytes
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxCodeBytes))
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	code, err := dec.DecodeAll(frame, make([]byte, 0, total))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if len(code) != total {
		return nil, fmt.Errorf("%w: %d bytes of code, not the %d of its header", ErrArchive, len(code), total)
	}
	for i := range h.Images {
		n := h.Images[i].NumBytes
		h.Images[i].Code, code = code[:n:n], code[n:]
	}
	if err := checkCode(h.Images); err != nil {
		return nil, err
	}
	return h.Images, nil
}

// Of a cubin's ELF header: 64 bits, little-endian; the machine is CUDA.
const (
	elfMark    = "\x7fELF\x02\x01"
	elfMachine = 18
	elfCUDA    = 190
	elfBytes   = 64
)

// checkCode looks whether code is of the kind that its target says.
func checkCode(images []Image) error {
	for _, image := range images {
		t, err := parseTarget(image.Target)
		if err != nil {
			return err
		}
		if t.ptx != isPTX(image.Code) || t.ptx == isCubin(image.Code) {
			return fmt.Errorf("%w: what it has for %s is no %s", ErrArchive, image.Target, t.kind())
		}
	}
	return nil
}

func isCubin(code []byte) bool {
	return len(code) >= elfBytes && bytes.HasPrefix(code, []byte(elfMark)) &&
		binary.LittleEndian.Uint16(code[elfMachine:]) == elfCUDA
}

// isPTX: the driver reads up to a zero, which must be there, and be the end.
func isPTX(code []byte) bool {
	return bytes.IndexByte(code, 0) == len(code)-1 && bytes.Contains(code, []byte("\n.version "))
}
