package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/moewire/moewire/core/internal/sys"
)

// FromFile is a Source that reads a regular file of this process's user or of root, which
// only its owner may read or write. A file of root's may be read by its group, too, as
// containers mount secrets. The folders that lead to the file, and to a symbolic link
// that stands for it, belong to this user or to root. No other user may put another file
// there. Anything else at that path is refused and not waited for.
func FromFile(path string) Source {
	return func() ([]byte, error) {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe's writer may never come
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := trusted(path, f); err != nil {
			return nil, err
		}
		return readKeys(f)
	}
}

// readKeys reads into memory of one piece: what grows leaves copies behind.
func readKeys(f io.Reader) ([]byte, error) {
	text := make([]byte, maxKeyTextBytes+1)
	n, err := io.ReadFull(f, text)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		clear(text)
		return nil, err
	}
	return text[:n], nil
}

// trusted says why an open file may not be a key file.
func trusted(path string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := private(info); err != nil {
		return fmt.Errorf("%s %w", path, err)
	}
	if err := ownedHere(path, info); err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for _, p := range []string{real, path} {
		if err := foldersOf(p); err != nil {
			return fmt.Errorf("key file %s: %w", path, err)
		}
	}
	return nil
}

// private says which other users could read or change a key and should not.
func private(info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}
	mode, others := info.Mode().Perm(), os.FileMode(0o044)
	if ownerOf(info) == 0 {
		others = 0o004
	}
	switch {
	case mode&0o022 != 0:
		return fmt.Errorf("may be written by others than its owner (mode %#o, use 0600)", mode)
	case mode&others != 0:
		return fmt.Errorf("may be read by others than its owner (mode %#o, use 0600)", mode)
	}
	return nil
}

// foldersOf looks at all folders above a path, as ssh does for its files: a user that may
// rename one of them may put another key in place.
func foldersOf(path string) error {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if err := ownedHere("folder "+dir, info); err != nil {
			return err
		}
		if info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
			return fmt.Errorf("folder %s may be written by others than its owner (mode %#o; allowed: writable by its owner alone, or sticky as /tmp)",
				dir, info.Mode().Perm())
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// ownedHere reports an owner that is neither this process's user nor root.
func ownedHere(what string, info os.FileInfo) error {
	err := sys.CheckOwner(what, ownerOf(info))
	if sys.IsShortage(err) {
		return err // it says nothing of the owner
	}
	if err != nil {
		return fmt.Errorf("%w (mode %#o; allowed owners: the user of this process, and root)", err, info.Mode().Perm())
	}
	return nil
}

// ownerOf is the owner of a file; -1, no user, where the system does not say.
func ownerOf(info os.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

// Lines makes each ; of a text the end of a line, in place, and returns it.
func Lines(text []byte) []byte {
	for i := bytes.IndexByte(text, ';'); i >= 0; i = bytes.IndexByte(text, ';') {
		text[i] = '\n'
	}
	return text
}
