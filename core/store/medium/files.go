package medium

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/record"
)

const (
	superMagic   = 0x5053574d // "MWSP"
	superVersion = 2
	superCheck   = 64 // where the check of what stands before it begins
	superBytes   = record.PageBytes
	superName    = "super"
	blocksName   = "blocks"
	lockName     = "lock"
)

// Files are segments in a folder: super, which says of what size they are, and blocks, in which they lie
// one behind the other. One process at a time has the folder open: the one that has locked lock.
type Files struct {
	segmentBytes int64
	numSegments  int
	numKept      int
	isAnew       bool
	secret       record.Secret
	lock, blocks *sys.FD
	reserved     []atomic.Bool // of each segment: it has its room on the disk
}

// OpenFiles opens the store of a folder, or makes one. A store that is there keeps the size of its segments, and all
// that it has: a smaller capacity has room for fewer of them (NumKept). Where that leaves fewer than LeastSegments, the
// store begins anew, empty.
func OpenFiles(path string, capacityBytes int64) (*Files, error) {
	wanted, err := SegmentBytesFor(capacityBytes)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("the store's folder: %w", err)
	}
	f := &Files{}
	if err := f.open(path, capacityBytes, wanted); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Files) open(path string, capacityBytes, wanted int64) (err error) {
	if f.lock, err = sys.OpenFile(filepath.Join(path, lockName)); err != nil {
		return err
	}
	if err = sys.LockFile(f.lock); errors.Is(err, sys.ErrLocked) {
		return fmt.Errorf("%s: %w", path, ErrInUse)
	} else if err != nil {
		return err
	}
	if f.blocks, err = sys.OpenFile(filepath.Join(path, blocksName)); err != nil {
		return err
	}
	return f.begin(path, capacityBytes, wanted)
}

// begin takes the size of segments from super, or makes a store of the size that is wanted.
func (f *Files) begin(path string, capacityBytes, wanted int64) error {
	page, err := os.ReadFile(filepath.Join(path, superName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err == nil {
		if err := f.known(page); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	size, err := sys.Size(f.blocks)
	if err != nil {
		return err
	}
	if f.segmentBytes == 0 && size > 0 {
		return fmt.Errorf("%s: %w: %s has %d bytes, and there is no %s", path, ErrForeign, blocksName, size, superName)
	}
	if f.segmentBytes == 0 || capacityBytes/f.segmentBytes < LeastSegments {
		f.isAnew, size = f.segmentBytes > 0, 0
		if err := f.anew(path, wanted); err != nil {
			return err
		}
	}
	if most := MaxSegments * f.segmentBytes; capacityBytes > most {
		return fmt.Errorf("capacity: %d bytes given; allowed: %d at most (%d segments of %d, which %s has): empty the folder first",
			capacityBytes, most, MaxSegments, f.segmentBytes, path)
	}
	f.numKept = int(capacityBytes / f.segmentBytes)
	f.numSegments = max(f.numKept, int(min((size+f.segmentBytes-1)/f.segmentBytes, MaxSegments)))
	f.reserved = make([]atomic.Bool, f.numSegments)
	return nil
}

// known reads what super says.
func (f *Files) known(page []byte) error {
	le := binary.LittleEndian
	if len(page) != superBytes || le.Uint32(page) != superMagic {
		return fmt.Errorf("%w: %s is none", ErrForeign, superName)
	}
	if v := le.Uint32(page[4:]); v != superVersion {
		return fmt.Errorf("%w: %s is of version %d, and this is version %d", ErrForeign, superName, v, superVersion)
	}
	n := int64(le.Uint64(page[8:]))
	if n < LeastSegmentBytes || n > MostSegmentBytes || n&(n-1) != 0 || !bytes.Equal(page[superCheck:], checkOfSuper(page)) {
		return fmt.Errorf("%w: %s is damaged", ErrForeign, superName)
	}
	f.segmentBytes = n
	copy(f.secret[:], page[32:])
	return nil
}

// anew makes an empty store. Its new secret turns what lies in blocks into no records.
func (f *Files) anew(path string, segmentBytes int64) error {
	f.segmentBytes = segmentBytes
	rand.Read(f.secret[:])
	if err := sys.Truncate(f.blocks, 0); err != nil {
		return err
	}
	return replace(filepath.Join(path, superName), superOf(segmentBytes, f.secret))
}

// superOf is the page that says what a store is.
func superOf(segmentBytes int64, secret record.Secret) []byte {
	page, le := make([]byte, superBytes), binary.LittleEndian
	le.PutUint32(page, superMagic)
	le.PutUint32(page[4:], superVersion)
	le.PutUint64(page[8:], uint64(segmentBytes))
	copy(page[32:], secret[:])
	copy(page[superCheck:], checkOfSuper(page))
	return page
}

// checkOfSuper is what stands behind the first bytes of super: a check of them, and zeros.
func checkOfSuper(page []byte) []byte {
	out := make([]byte, superBytes-superCheck)
	sum := sha256.Sum256(page[:superCheck])
	copy(out, sum[:16])
	return out
}

// replace writes a file, whole or not at all.
func replace(path string, data []byte) error {
	fresh := path + ".new"
	fd, err := sys.OpenFile(fresh)
	if err != nil {
		return err
	}
	err = errors.Join(sys.Truncate(fd, 0), sys.WriteAt(fd, 0, data), sys.Datasync(fd), fd.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder returns once the names of a folder are on the disk.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// NumKept is how many segments the capacity has room for.
func (f *Files) NumKept() int { return f.numKept }

// Anew reports whether a store of larger segments was given up.
func (f *Files) Anew() bool { return f.isAnew }

// GiveBack cuts those segments off that were the last ones, and leaves holes where the others were.
func (f *Files) GiveBack(segments []int) error {
	given := map[int]bool{}
	for _, at := range segments {
		given[at] = true
	}
	end := f.numSegments
	for end > 0 && given[end-1] {
		end--
	}
	size, err := sys.Size(f.blocks)
	if most := int64(end) * f.segmentBytes; err == nil && size > most {
		err = sys.Truncate(f.blocks, most)
	}
	for at := range given {
		if at < end && err == nil {
			err = sys.Punch(f.blocks, int64(at)*f.segmentBytes, f.segmentBytes)
		}
	}
	return err
}

// Secret is the store's own: it is made with the store.
func (f *Files) Secret() record.Secret { return f.secret }

// SegmentBytes is the size of a segment.
func (f *Files) SegmentBytes() int64 { return f.segmentBytes }

// NumSegments is how many there are.
func (f *Files) NumSegments() int { return f.numSegments }

// Size is the size of all segments.
func (f *Files) Size() int64 { return f.segmentBytes * int64(f.numSegments) }

// Share is a descriptor by which another process can read all segments, one behind the other, and change none.
// The caller closes it.
func (f *Files) Share() (*sys.FD, error) { return sys.ReadOnly(f.blocks) }

// Lasts is true.
func (f *Files) Lasts() bool { return true }

// Bytes is nil: nothing lies in memory.
func (f *Files) Bytes(int, int64, int64) []byte { return nil }

// Write takes the segment's room on the disk first, all of it, so that a full disk is met before any of the
// bytes is written.
func (f *Files) Write(segment int, off int64, pieces ...[]byte) error {
	at := int64(segment) * f.segmentBytes
	if !f.reserved[segment].Load() {
		if err := sys.Reserve(f.blocks, at, f.segmentBytes); err != nil {
			return err
		}
		f.reserved[segment].Store(true)
	}
	return sys.WriteAt(f.blocks, at+off, pieces...)
}

// Read reads.
func (f *Files) Read(segment int, off int64, p []byte) error {
	return sys.ReadAt(f.blocks, int64(segment)*f.segmentBytes+off, p)
}

// Sync waits for the disk; all segments are one file. The kernel says only once that it has lost what was written: after an error the
// next one may succeed without it.
func (f *Files) Sync(int) error { return sys.Datasync(f.blocks) }

// Close gives the folder up.
func (f *Files) Close() error {
	var errs []error
	for _, fd := range []*sys.FD{f.blocks, f.lock} {
		if fd != nil {
			errs = append(errs, fd.Close())
		}
	}
	return errors.Join(errs...)
}
