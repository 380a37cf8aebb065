package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

// KeyBytes is the length of a shared key.
const KeyBytes = 32

// MaxNumKeys is how many keys a ring may have.
const MaxNumKeys = 16

// maxKeyTextBytes bounds what is read from a source.
const maxKeyTextBytes = 64 << 10

// hidden is all that a key, or what holds one, ever prints.
const hidden = "wire: keys are not shown"

// Source gives the text of a keyring. The ring overwrites what it was given.
type Source func() ([]byte, error)

// Keyring holds the keys that both sides share, each with an id. Handshakes
// are begun with the current one and accepted with any, so that keys can be
// exchanged one host after the other:
//
//  1. every host gets the new key as a further line, and Reload;
//  2. every host gets it as the first line, and Reload;
//  3. the old line goes, and Reload.
//
// The text has one key per line, the current one first: an id (a decimal
// number below 2^32), blanks, and 64 hexadecimal digits. Empty lines and what
// follows a # are skipped. Safe for concurrent use. It never shows a key.
type Keyring struct {
	source Source
	keys   atomic.Pointer[keys]
}

// keys is what one reading gave. Never changed, so that readers need no lock.
type keys struct {
	current uint32
	secrets map[uint32]*[KeyBytes]byte
}

// NewKeyring reads a ring from a source and remembers the source for Reload.
// The error names the line that is wrong and never what is on it.
func NewKeyring(source Source) (*Keyring, error) {
	if source == nil {
		return nil, errors.New("wire: source of keys is nil")
	}
	r := &Keyring{source: source}
	if err := r.Reload(); err != nil {
		return nil, err
	}
	return r, nil
}

// GenerateKeyring makes a ring of one random key that exists in this process
// only: for tests, and for peers within one process.
func GenerateKeyring() *Keyring {
	secret := new([KeyBytes]byte)
	_, _ = rand.Read(secret[:]) // never fails, says crypto/rand
	r := &Keyring{}
	r.keys.Store(&keys{current: 1, secrets: map[uint32]*[KeyBytes]byte{1: secret}})
	return r
}

// FromFile is a Source that reads a regular file, which nobody but its owner may
// read or write; one of root's may be read by its group, too, as containers
// mount secrets. Whatever else has that path is refused and not waited for.
func FromFile(path string) Source {
	return func() ([]byte, error) {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe's writer may never come
		if err != nil {
			return nil, err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if err := private(info); err != nil {
			return nil, fmt.Errorf("%s %w", path, err)
		}
		return io.ReadAll(io.LimitReader(f, maxKeyTextBytes+1))
	}
}

// private says who could read or change a key and should not.
func private(info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("is not a regular file")
	}
	mode, others := info.Mode().Perm(), os.FileMode(0o044)
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid == 0 {
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

// FromEnv is a Source that reads an environment variable; lines may be
// separated by ; there.
func FromEnv(name string) Source {
	return func() ([]byte, error) {
		value, found := os.LookupEnv(name)
		if !found {
			return nil, fmt.Errorf("environment variable %s is not set", name)
		}
		return bytes.ReplaceAll([]byte(value), []byte(";"), []byte("\n")), nil
	}
}

// Reload reads the source again. On an error the ring stays as it was.
// Sessions go on with the keys that they have; see Has.
func (r *Keyring) Reload() error {
	if r.source == nil {
		return nil
	}
	text, err := r.source()
	if err != nil {
		return fmt.Errorf("wire: reading keys: %w", err)
	}
	defer clear(text)
	read, err := parseKeys(text)
	if err != nil {
		return fmt.Errorf("wire: reading keys: %w", err)
	}
	r.keys.Store(read)
	return nil
}

// Current is the id of the key that handshakes are begun with.
func (r *Keyring) Current() uint32 { return r.keys.Load().current }

// Has reports whether a key is accepted. Who wants sessions to end with the
// key that they were begun with asks for Session.KeyID after a Reload.
func (r *Keyring) Has(id uint32) bool { return r.secret(id) != nil }

// currentKey is the current key, id and secret of the same reading.
func (r *Keyring) currentKey() (id uint32, secret *[KeyBytes]byte) {
	k := r.keys.Load()
	return k.current, k.secrets[k.current]
}

func (r *Keyring) secret(id uint32) *[KeyBytes]byte { return r.keys.Load().secrets[id] }

// String never shows a key.
func (r *Keyring) String() string { return hidden }

// GoString never shows a key.
func (r *Keyring) GoString() string { return hidden }

// Format never shows a key, whatever the verb.
func (r *Keyring) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText never shows a key.
func (r *Keyring) MarshalText() ([]byte, error) { return []byte(hidden), nil }

func parseKeys(text []byte) (*keys, error) {
	if len(text) > maxKeyTextBytes {
		return nil, fmt.Errorf("more than %d bytes", maxKeyTextBytes)
	}
	k := &keys{secrets: map[uint32]*[KeyBytes]byte{}}
	for number, line := range bytes.Split(text, []byte("\n")) {
		line, _, _ = bytes.Cut(line, []byte("#"))
		fields := bytes.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if err := k.add(fields); err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	if len(k.secrets) == 0 {
		return nil, errors.New("there is no key")
	}
	return k, nil
}

// add takes the fields of one line. Its errors do not quote them.
func (k *keys) add(fields [][]byte) error {
	if len(fields) != 2 {
		return fmt.Errorf("has %d fields, not an id and a key", len(fields))
	}
	id, err := strconv.ParseUint(string(fields[0]), 10, 32)
	if err != nil {
		return errors.New("the id is not a number below 2^32")
	}
	secret, err := parseSecret(fields[1])
	if err != nil {
		return err
	}
	if k.secrets[uint32(id)] != nil {
		return fmt.Errorf("id %d is there twice", id)
	}
	if len(k.secrets) == MaxNumKeys {
		return fmt.Errorf("more than %d keys", MaxNumKeys)
	}
	if len(k.secrets) == 0 {
		k.current = uint32(id)
	}
	k.secrets[uint32(id)] = secret
	return nil
}

// parseSecret takes exactly KeyBytes bytes in hexadecimal, not all equal.
func parseSecret(text []byte) (*[KeyBytes]byte, error) {
	if len(text) != hex.EncodedLen(KeyBytes) {
		return nil, fmt.Errorf("the key has %d characters, not %d", len(text), hex.EncodedLen(KeyBytes))
	}
	secret := new([KeyBytes]byte)
	if _, err := hex.Decode(secret[:], text); err != nil {
		return nil, errors.New("the key has characters that are no hexadecimal digits")
	}
	if bytes.Count(secret[:], secret[:1]) == KeyBytes {
		return nil, errors.New("all bytes of the key are equal")
	}
	return secret, nil
}
