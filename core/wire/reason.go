package wire

import "sync/atomic"

// Reason says why something was refused. It is the error itself, so that
// errors.Is works, nothing is allocated, and no text can carry a secret.
type Reason uint8

// The reasons. A frame that was refused for one of them has changed nothing.
const (
	// ErrLength: a length that no frame has, or a payload over the bound.
	ErrLength Reason = iota + 1
	// ErrMAC: the tag is wrong: another key, another session, or altered.
	ErrMAC
	// ErrTime: signed more than MaxSkew ago, or ahead.
	ErrTime
	// ErrReplay: was here before, or is older than the replay window.
	ErrReplay
	// ErrGap: an earlier message of an ordered session is missing.
	ErrGap
	// ErrVersion: a format version that this side does not speak.
	ErrVersion
	// ErrKind: a kind of frame that cannot come now.
	ErrKind
	// ErrCode: a message code that is not in Config.Codes.
	ErrCode
	// ErrKeyID: no key of that id.
	ErrKeyID
	// ErrDirection: a frame of this side's own direction came back.
	ErrDirection
	// ErrSession: genuine, but names another session.
	ErrSession
	// ErrProtection: the other side protects payloads in another way.
	ErrProtection
	// ErrField: a field that must be zero is not, or an answer that answers
	// nothing.
	ErrField
	// ErrPeer: the other side is not the one that was asked for, or wants another one.
	ErrPeer
	// ErrPayload: the payload is not the one that the header speaks of.
	ErrPayload
	// ErrDeclined: Config.Accept did not want this peer.
	ErrDeclined
	// ErrBusy: the table of hellos is full; try again later.
	ErrBusy
	// ErrExhausted: the session has used up its sequence numbers.
	ErrExhausted

	numReasons
)

var reasonTexts = [numReasons]string{
	"no reason",
	"impossible length",
	"wrong tag",
	"signed at another time",
	"seen before",
	"an earlier message is missing",
	"unknown version",
	"unexpected kind of frame",
	"unknown message code",
	"unknown key id",
	"wrong direction",
	"another session",
	"payloads are protected in another way",
	"a field has a value that it cannot have",
	"another peer",
	"payload is not what the header says",
	"peer declined",
	"too many handshakes",
	"session is used up",
}

// Text says it in words.
func (r Reason) Text() string {
	if r >= numReasons {
		r = 0
	}
	return reasonTexts[r]
}

// Error is Text with the package's name.
func (r Reason) Error() string { return "wire: " + r.Text() }

// RefusedError is the authenticated refusal of the other side: it knows the
// key and does not go on. Unwrap gives its Reason.
type RefusedError struct {
	Reason Reason
}

// Error says that it was the other side.
func (e *RefusedError) Error() string { return "wire: the peer refused: " + e.Reason.Error() }

// Unwrap gives the peer's reason.
func (e *RefusedError) Unwrap() error { return e.Reason }

// Counters count refusals by reason. Any number of handshakes and sessions may
// share one. The zero value is ready; safe for concurrent use.
type Counters struct {
	refused [numReasons]atomic.Uint64
	frames  atomic.Uint64
}

// Frames is how many frames were accepted.
func (c *Counters) Frames() uint64 { return c.frames.Load() }

// Refused is how often something was refused for a reason.
func (c *Counters) Refused(r Reason) uint64 {
	if r >= numReasons {
		return 0
	}
	return c.refused[r].Load()
}

// Each calls f with every reason that was counted, in the order of Reason.
func (c *Counters) Each(f func(r Reason, n uint64)) {
	for r := Reason(1); r < numReasons; r++ {
		if n := c.refused[r].Load(); n != 0 {
			f(r, n)
		}
	}
}

// refuse counts a reason and returns it.
func (c *Counters) refuse(r Reason) error {
	if c != nil {
		c.refused[r].Add(1)
	}
	return r
}

func (c *Counters) accept() {
	if c != nil {
		c.frames.Add(1)
	}
}
