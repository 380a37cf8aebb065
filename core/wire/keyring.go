package wire

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
)

// KeyBytes is the length of a shared key.
const KeyBytes = 32

// MaxNumKeys is how many keys a ring may have.
const MaxNumKeys = 256

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
// number below 2^32), blanks, and 64 hexadecimal digits; then the words of its
// terms, where the ring has a use for them. Empty lines are skipped, and
// comments: a # at the start of a word, and what follows. Safe for concurrent use. It never shows a key.
type Keyring struct {
	source Source
	terms  Terms

	mu      sync.RWMutex // guards what follows: keys that are replaced are wiped
	keys    *keys
	closed  bool
	reading atomic.Uint64 // which reading of the source this is, from 1; changes behind the keys
}

// keys is what one reading gave.
type keys struct {
	current uint32
	secrets map[uint32]*[KeyBytes]byte
	grants  map[uint32]grant
}

func (k *keys) wipe() {
	if k == nil {
		return
	}
	for _, secret := range k.secrets {
		clear(secret[:])
	}
}

// NewKeyring reads a ring from a source and remembers the source for Reload.
// The error names the line that is wrong and never what is on it.
func NewKeyring(source Source) (*Keyring, error) { return NewKeyringWithTerms(source, nil) }

// NewKeyringWithTerms is NewKeyring for keys that may have terms; nil: none has.
func NewKeyringWithTerms(source Source, terms Terms) (*Keyring, error) {
	if source == nil {
		return nil, errors.New("wire: source of keys is nil")
	}
	r := &Keyring{source: source, terms: terms}
	if err := r.Reload(); err != nil {
		return nil, err
	}
	return r, nil
}

// GenerateKeyring makes a ring of one random key that exists in this process
// only: for tests, and for peers within one process.
func GenerateKeyring() *Keyring {
	r := &Keyring{keys: &keys{current: 1, secrets: map[uint32]*[KeyBytes]byte{1: nobodysKey()}}}
	r.keys.grants = map[uint32]grant{1: {}}
	r.reading.Store(1)
	return r
}

// NewFixedKeyring makes a ring of a text, which it wipes, and of which keys may have terms if
// these are not nil. Reload changes nothing.
func NewFixedKeyring(text []byte, terms Terms) (*Keyring, error) {
	r, err := NewKeyringWithTerms(func() ([]byte, error) { return text, nil }, terms)
	if err != nil {
		return nil, err
	}
	r.source = nil
	return r, nil
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
	read, err := parseKeys(text, r.terms)
	if err != nil {
		return fmt.Errorf("wire: reading keys: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		read.wipe()
		return fmt.Errorf("wire: reading keys: %w", errClosedRing)
	}
	read.date(r.keys, r.reading.Load()+1)
	r.keys.wipe()
	r.keys = read
	r.reading.Add(1)
	return nil
}

var errClosedRing = errors.New("the ring is closed")

// Close wipes the keys. No handshake of this ring succeeds any more, and no datagram
// is accepted; sessions go on. What the Go runtime, a hash or a cipher has copied
// is not reached. Idempotent.
func (r *Keyring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys.wipe()
	r.keys, r.closed = &keys{}, true
	r.reading.Add(1)
}

// Current is the id of the key that handshakes are begun with.
func (r *Keyring) Current() uint32 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.keys.current
}

// Has reports whether a key is accepted. A caller that wants sessions to end with the key
// that they were begun with asks for Session.KeyID after a Reload.
func (r *Keyring) Has(id uint32) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.keys.secrets[id] != nil
}

// Reading says which reading of the source the keys are of, from 1. A caller that sees that it has changed and then asks
// for a key gets one of that reading, or of a later one.
func (r *Keyring) Reading() uint64 { return r.reading.Load() }

// currentKey is the current key, id and secret of the same reading. The secret is a copy,
// the caller's to wipe. The secret of a closed ring is one that no process has.
func (r *Keyring) currentKey() (id uint32, secret *[KeyBytes]byte) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	id = r.keys.current
	if secret = r.keys.copyOf(id); secret == nil {
		secret = nobodysKey()
	}
	return id, secret
}

func nobodysKey() *[KeyBytes]byte {
	secret := new([KeyBytes]byte)
	_, _ = rand.Read(secret[:]) // never fails, says crypto/rand
	return secret
}

// secret is a copy of a key, the caller's to wipe; nil if there is none.
func (r *Keyring) secret(id uint32) *[KeyBytes]byte {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.keys.copyOf(id)
}

func (k *keys) copyOf(id uint32) *[KeyBytes]byte {
	secret := k.secrets[id]
	if secret == nil {
		return nil
	}
	c := *secret
	return &c
}

// String never shows a key.
func (r *Keyring) String() string { return hidden }

// GoString never shows a key.
func (r *Keyring) GoString() string { return hidden }

// Format never shows a key, whatever the verb.
func (r *Keyring) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText never shows a key.
func (r *Keyring) MarshalText() ([]byte, error) { return []byte(hidden), nil }

func parseKeys(text []byte, terms Terms) (*keys, error) {
	if len(text) > maxKeyTextBytes {
		return nil, fmt.Errorf("more than %d bytes", maxKeyTextBytes)
	}
	k := &keys{secrets: map[uint32]*[KeyBytes]byte{}, grants: map[uint32]grant{}}
	for number, line := range bytes.Split(text, []byte("\n")) {
		fields := fieldsOf(line)
		if len(fields) == 0 {
			continue
		}
		if err := k.add(fields, terms); err != nil {
			k.wipe()
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	if len(k.secrets) == 0 {
		return nil, errors.New("there is no key")
	}
	return k, nil
}

// fieldsOf are the words before a comment, which begins where a word does.
func fieldsOf(line []byte) [][]byte {
	fields := bytes.Fields(line)
	for i, f := range fields {
		if f[0] == '#' {
			return fields[:i]
		}
	}
	return fields
}

// add takes the fields of one line. Its errors do not quote them.
func (k *keys) add(fields [][]byte, terms Terms) error {
	if slices.ContainsFunc(fields, func(f []byte) bool { return bytes.Contains(f, []byte("#")) }) { // dropped as a comment, it would widen what the key may do
		return errors.New("has a # within a word: a comment begins behind a blank")
	}
	if len(fields) < 2 || len(fields) > 2 && terms == nil {
		return fmt.Errorf("has %d fields, not an id and a key", len(fields))
	}
	id, err := strconv.ParseUint(string(fields[0]), 10, 32)
	if err != nil {
		return errors.New("the id is not a number below 2^32")
	}
	if k.secrets[uint32(id)] != nil {
		return fmt.Errorf("id %d is there twice", id)
	}
	if len(k.secrets) == MaxNumKeys {
		return fmt.Errorf("more than %d keys", MaxNumKeys)
	}
	granted, err := grantOf(fields[2:], terms)
	if err != nil {
		return err
	}
	secret, err := parseSecret(fields[1]) // last: a copy that is not kept is not made
	if err != nil {
		return err
	}
	if len(k.secrets) == 0 {
		k.current = uint32(id)
	}
	k.secrets[uint32(id)], k.grants[uint32(id)] = secret, granted
	return nil
}

// parseSecret takes exactly KeyBytes bytes in hexadecimal, not all equal.
func parseSecret(text []byte) (*[KeyBytes]byte, error) {
	if len(text) != hex.EncodedLen(KeyBytes) {
		return nil, fmt.Errorf("the key has %d characters, not %d", len(text), hex.EncodedLen(KeyBytes))
	}
	secret := new([KeyBytes]byte)
	if _, err := hex.Decode(secret[:], text); err != nil {
		clear(secret[:])
		return nil, errors.New("the key has characters that are no hexadecimal digits")
	}
	if bytes.Count(secret[:], secret[:1]) == KeyBytes {
		return nil, errors.New("all bytes of the key are equal")
	}
	return secret, nil
}
