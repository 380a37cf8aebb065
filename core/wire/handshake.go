package wire

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// Role is which side of a connection this is.
type Role uint8

// The roles. The client speaks first.
const (
	RoleClient Role = iota + 1
	RoleServer
)

// PeerID identifies a process, by numbers that only mean something to the caller: random
// ones, for instance, that it has published. Zeros mean any process.
type PeerID [16]byte

// MaxBlobBytes bounds what each side tells the other in the handshake.
const MaxBlobBytes = 1024

// Config says how handshakes are made. It may be shared by any number of them; it must
// not change then.
type Config struct {
	// Keys are those that both sides share. Needed.
	Keys *Keyring
	// Self is the id of this side. Peer is the id that the other must have, if not zeros.
	Self, Peer PeerID
	// Blob is told to the other side, authenticated and not secret: rank,
	// epoch, addresses, whatever the caller needs. At most MaxBlobBytes.
	Blob []byte
	// Accept looks at what the other side has said. An error ends the handshake
	// (ErrDeclined, to the other side, too). A server answers with the blob that it
	// returns, in place of Blob. It is called before the peer has shown that it is alive:
	// what it changes must be harmless until Done. nil accepts every peer that has the
	// key.
	Accept func(Peer) (blob []byte, err error)
	// Protection of payloads; 0 means ProtectDigest. Both sides must have the
	// same: there is nothing to negotiate, hence nothing to downgrade.
	Protection Protection
	// Ordered is for carriers that keep the order, such as a TCP connection:
	// a message that is missing is noticed at the next one. Otherwise messages
	// may come up to WindowNum late, once each.
	Ordered bool
	// Apart lets payloads have an end that the digest does not cover (Head.ApartBytes). For
	// protocols with checks of their own, under a key that the protocol answers for.
	Apart bool
	// MaxPayloadBytes bounds payloads, both ways. Needed.
	MaxPayloadBytes int64
	// Codes are the message codes that there are; nil means all.
	Codes *CodeSet
	// Guard refuses hellos that were here before. A server needs one.
	Guard *Guard
	// Counters count what was refused, if not nil.
	Counters *Counters
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	rand io.Reader // of nonces; nil means crypto/rand
}

// Peer is what the other side has said in the handshake.
type Peer struct {
	ID    PeerID
	KeyID uint32
	Blob  []byte // a copy, the receiver's own
}

// Handshake is one side's part in beginning a session: bytes in, bytes out, no
// input or output of its own. Three frames: hello, welcome, confirm. For one
// goroutine at a time. It holds at most one frame, and a copy of the shared key
// until it is over: the holder closes one that it gives up.
type Handshake struct {
	role    Role
	config  Config
	state   state
	err     error // why state is stateFailed
	buf     [maxHelloFrameBytes]byte
	have    int
	keyID   uint32
	secret  *[KeyBytes]byte // kept, because the ring may be read again meanwhile
	hello   helloFrame      // of this side
	hellos  []byte          // frames hello and welcome, for the transcript
	peer    Peer
	session *Session
}

type state uint8

const (
	stateStart   state = iota // client: Start is due
	stateHello                // server: hello is awaited
	stateWelcome              // client: welcome or refusal is awaited
	stateConfirm              // server: confirm is awaited
	stateDone
	stateFailed
)

// holdsKeys reports whether a handshake between two calls has keys: the shared
// one, or those of a session that the other side has not confirmed.
func (s state) holdsKeys() bool { return s == stateWelcome || s == stateConfirm }

// numOpen counts the handshakes of this process that hold keys.
var numOpen atomic.Int64

// NumOpenHandshakes is how many handshakes of this process are begun and neither over nor
// closed. Those that are not continued hold keys for nothing. Safe for concurrent use.
func NumOpenHandshakes() int64 { return numOpen.Load() }

var errClosedHandshake = errors.New("wire: the handshake was given up")

// NewHandshake begins one. The error names the field of Config that is wrong.
func NewHandshake(role Role, config Config) (*Handshake, error) {
	if err := config.check(role); err != nil {
		return nil, err
	}
	if config.Protection == 0 {
		config.Protection = ProtectDigest
	}
	if config.rand == nil {
		config.rand = rand.Reader
	}
	h := &Handshake{role: role, config: config, state: stateStart}
	if role == RoleServer {
		h.state = stateHello
	}
	return h, nil
}

func (c *Config) check(role Role) error {
	switch {
	case role != RoleClient && role != RoleServer:
		return fmt.Errorf("wire: role is %d, not RoleClient or RoleServer", role)
	case c.Keys == nil:
		return errors.New("wire: Config.Keys is nil; there is no mode without keys")
	case len(c.Blob) > MaxBlobBytes:
		return fmt.Errorf("wire: Config.Blob has %d bytes, at most %d are allowed", len(c.Blob), MaxBlobBytes)
	case c.Protection > ProtectEncrypt:
		return fmt.Errorf("wire: Config.Protection is %d, not ProtectDigest or ProtectEncrypt", c.Protection)
	case c.MaxPayloadBytes <= 0 || c.MaxPayloadBytes > maxPayloadBytes:
		return fmt.Errorf("wire: Config.MaxPayloadBytes is %d, not in 1..%d", c.MaxPayloadBytes, int64(maxPayloadBytes))
	case role == RoleServer && c.Guard == nil:
		return errors.New("wire: Config.Guard is nil; a server needs one")
	}
	return nil
}

// Start gives the client's first bytes to write. Once; a server gets nil.
func (h *Handshake) Start() []byte {
	if h.state != stateStart {
		return nil
	}
	return h.sendHello()
}

// Need is how many more bytes are wanted before anything can happen, never
// more than belong to the handshake; 0 once it is over. It is for readers that
// must not take what follows.
func (h *Handshake) Need() int {
	if h.state == stateDone || h.state == stateFailed {
		return 0
	}
	if h.have < LengthBytes {
		return LengthBytes - h.have
	}
	n, err := helloFrameBytes(h.buf[:])
	if err != nil {
		return 0
	}
	return n - h.have
}

// Step takes bytes that have arrived, in any portions, and returns how many
// belonged to the handshake and what is to be written. Bytes behind the
// handshake's last one are left. With an error the handshake is over: write
// what there is (the authenticated refusal, if the other side has the key),
// and close. Later calls return the same error.
func (h *Handshake) Step(in []byte) (n int, out []byte, err error) {
	for n < len(in) && h.Need() > 0 {
		m := copy(h.buf[h.have:h.have+h.Need()], in[n:])
		h.have += m
		n += m
		if out, err = h.advance(); err != nil {
			h.fail(err)
			break
		}
		if out != nil {
			break
		}
	}
	return n, out, h.err
}

// Close gives a handshake up that is not over, and wipes its copy of the shared
// key; one that is over is left as it is, with its session. Step returns an error
// afterwards. Idempotent; nil is closed.
func (h *Handshake) Close() {
	if h != nil && h.state != stateDone && h.state != stateFailed {
		h.fail(errClosedHandshake)
	}
}

// Done reports whether Session may be used.
func (h *Handshake) Done() bool { return h.state == stateDone }

// Session is nil before Done. The caller owns it.
func (h *Handshake) Session() *Session {
	if !h.Done() {
		return nil
	}
	return h.session
}

// Peer is what the other side has said; zeros before Done.
func (h *Handshake) Peer() Peer {
	if !h.Done() {
		return Peer{}
	}
	return h.peer
}

// String never shows a key.
func (h *Handshake) String() string { return hidden }

// Format never shows a key, whatever the verb.
func (h *Handshake) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }
