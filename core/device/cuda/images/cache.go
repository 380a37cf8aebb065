package images

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// maxCacheBytes bounds what is kept: the code of some hundred devices, compilers
// and versions of the kernels.
const maxCacheBytes = 32 << 20

// staleAfter is how long an unfinished file may still be another process's work.
const staleAfter = time.Hour

// cache keeps compiled code in a folder, one archive per file. Programs may use
// it at the same time: files appear whole, under names that say all that the
// code depends on, and are never changed.
type cache struct {
	dir      string // "": there is none
	why      error  // why not
	maxBytes int64
	// write is what can fail while a file is made.
	write func(f *os.File, data []byte) error
}

func writeAll(f *os.File, data []byte) error {
	_, err := f.Write(data)
	return err
}

var errCacheOff = errors.New("the cache is off")

func newCache(dir string, err error) *cache {
	c := &cache{dir: dir, why: err, maxBytes: maxCacheBytes, write: writeAll}
	if err == nil && dir == "off" {
		c.dir, c.why = "", errCacheOff
	}
	return c
}

func (o *Options) cacheDir() (string, error) {
	if o.CacheDir != "" {
		return o.CacheDir, nil
	}
	if dir := os.Getenv("MOEWIRE_CUDA_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "moewire", "cuda"), nil
}

const suffix = ".kernels"

// path is where an image's archive stands.
func (c *cache) path(digest string, image Image) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{magic, digest, image.Compiler, image.Target}, "\x00")))
	return filepath.Join(c.dir, hex.EncodeToString(sum[:16])+suffix)
}

// get returns an image like want, with its code, or why there is none. What is
// used is kept longest.
func (c *cache) get(digest string, want Image) (Image, error) {
	image, err := c.look(digest, want)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(c.path(digest, want), now, now) // a cache that is read only stays as it is
	}
	return image, err
}

// look is get, and leaves no trace.
func (c *cache) look(digest string, want Image) (Image, error) {
	if err := c.usable(); err != nil {
		return Image{}, err
	}
	path := c.path(digest, want)
	data, err := readBounded(path)
	if err != nil {
		return Image{}, err
	}
	images, err := Unpack(data, digest)
	if err != nil {
		return Image{}, err
	}
	if len(images) != 1 || images[0].Target != want.Target || images[0].Compiler != want.Compiler {
		return Image{}, fmt.Errorf("%w: %s has other code than its name says", ErrArchive, path)
	}
	return images[0], nil
}

// readBounded reads a regular file that only its owner can have written. It
// does not wait: a pipe under that name is refused.
func readBounded(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	if err := othersWrite(path, info); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxArchiveBytes+1))
}

// othersWrite is an error where a user other than this one and root could have
// changed a file or folder, or where that cannot be told.
func othersWrite(path string, info os.FileInfo) error {
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s can be changed by other users (mode %#o)", path, info.Mode().Perm())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return sys.CheckOwner(path, int(st.Uid))
	}
	return nil
}

// usable: code out of a folder that others write to would be theirs.
func (c *cache) usable() error {
	if c.dir == "" {
		return c.why
	}
	info, err := os.Stat(c.dir)
	if err != nil {
		return err
	}
	return othersWrite(c.dir, info)
}

// put keeps an image, and forgets the least used ones if there are too many.
func (c *cache) put(digest string, image Image) error {
	if c.dir == "" {
		return c.why
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if err := c.usable(); err != nil {
		return err
	}
	data, err := Pack(digest, []Image{image})
	if err != nil {
		return err
	}
	if err := c.replace(c.path(digest, image), data); err != nil {
		return err
	}
	return c.shrink()
}

// replace makes a file in one step: whole, or not at all.
func (c *cache) replace(path string, data []byte) error {
	f, err := os.CreateTemp(c.dir, "new-*"+suffix)
	if err != nil {
		return err
	}
	err = c.write(f, data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// shrink removes what was used longest ago until the rest is within bounds, and
// what others have left unfinished. Files that vanish meanwhile are no error.
func (c *cache) shrink() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var files []os.FileInfo
	total := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		if strings.HasPrefix(e.Name(), "new-") {
			if time.Since(info.ModTime()) > staleAfter {
				_ = os.Remove(filepath.Join(c.dir, e.Name()))
			}
			continue
		}
		files, total = append(files, info), total+info.Size()
	}
	slices.SortFunc(files, func(a, b os.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	for _, info := range files {
		if total <= c.maxBytes {
			break
		}
		if err := os.Remove(filepath.Join(c.dir, info.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		total -= info.Size()
	}
	return nil
}
