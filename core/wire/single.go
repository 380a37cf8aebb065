package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"
)

// Sizes of single frames.
const (
	// SingleHeadBytes is the header of a single frame without Extra.
	SingleHeadBytes = 88
	// MaxSingleExtraBytes bounds SingleHead.Extra.
	MaxSingleExtraBytes = 1024
	// MaxSingleFrameBytes is the longest one, its length field included and its payload not.
	MaxSingleFrameBytes = LengthBytes + SingleHeadBytes + MaxSingleExtraBytes + TrailerBytes
	// SinglePrefixBytes is how many bytes tell a single frame from the beginning of a handshake.
	SinglePrefixBytes = LengthBytes + 2

	labelSingle = "moewire 2 single"
)

// MaxSingleClients is how many clients a Singles knows at a time. One is forgotten when no
// request of it could be accepted any more.
const MaxSingleClients = 4096

// SingleHead is what the header of a single request or reply says.
type SingleHead struct {
	Code   uint8
	Reply  bool
	Status uint16 // of a reply
	// KeyID is the key that the frame is signed with. Open sets it; a reply has that of its request.
	KeyID uint32
	// Server is the life of the server that the request is for: a random number, another one
	// after each start. Zeros in the request that asks for it.
	Server PeerID
	// Client is a random number of the client's, Request counts its requests from 1. A reply
	// has those of its request.
	Client  PeerID
	Request uint64
	// PayloadBytes is the length of the payload, and PayloadSHA256 its SHA-256.
	PayloadBytes  uint32
	PayloadSHA256 [sha256.Size]byte
	// Extra is the caller's, at most MaxSingleExtraBytes. After Open it is a part of the
	// frame's memory.
	Extra []byte
}

// Singles makes and checks single frames at a server: requests and replies outside of any
// session, for clients that have only HMAC and SHA-256. Each is accepted once: by the life
// of the server that it names, within MaxSkew of its clock. The payload is as safe as the
// header, which has its SHA-256, but is not encrypted. Safe for concurrent use.
type Singles struct {
	life     PeerID
	ask      uint8
	max      int64
	counters *Counters
	now      func() time.Time

	mu      sync.Mutex
	ring    ringSigners
	clients map[PeerID]*singleClient
	floor   uint64 // of clients that were forgotten, nothing signed until then is accepted, wherever the clock is set
}

// singleClient is what was heard of a client.
type singleClient struct {
	numbers window
	until   uint64 // no request that was signed so far is accepted later
}

// NewSingles uses of config Keys, MaxPayloadBytes, Counters and Now. It follows a Reload. life
// is the server's; a request of the code ask may leave it out.
func NewSingles(config Config, life PeerID, ask uint8) (*Singles, error) {
	switch {
	case config.Keys == nil:
		return nil, errors.New("wire: Config.Keys is nil; there is no mode without keys")
	case config.MaxPayloadBytes <= 0:
		return nil, errors.New("wire: Config.MaxPayloadBytes is not positive")
	}
	return &Singles{
		life: life, ask: ask, max: config.MaxPayloadBytes, counters: config.Counters, now: config.Now,
		ring: newRingSigners(config.Keys, labelSingle), clients: map[PeerID]*singleClient{},
	}, nil
}

// IsSingle reports whether a connection that begins with these SinglePrefixBytes bytes is one
// of single requests, and no handshake.
func IsSingle(prefix []byte) bool {
	return len(prefix) >= SinglePrefixBytes && prefix[LengthBytes] == Version && kind(prefix[LengthBytes+1]) == kindSingle
}

// SingleFrameBytes reads the length of a single frame from its first LengthBytes bytes and
// returns how many bytes the whole frame has, these included. ErrLength if none is that long.
func SingleFrameBytes(prefix []byte) (int, error) {
	if len(prefix) < LengthBytes {
		return 0, ErrLength
	}
	n := int64(binary.LittleEndian.Uint32(prefix))
	if n < SingleHeadBytes+TrailerBytes || n > MaxSingleFrameBytes-LengthBytes {
		return 0, ErrLength
	}
	return LengthBytes + int(n), nil
}

// Seal appends the frame of a reply with that payload, which follows it. It sets Reply, Server,
// PayloadBytes and PayloadSHA256. ErrLength if Extra or the payload is over its bound, ErrKeyID if the
// request's key is gone: dst is as it was.
func (s *Singles) Seal(dst []byte, head *SingleHead, payload []byte) ([]byte, error) {
	if len(head.Extra) > MaxSingleExtraBytes || int64(len(payload)) > s.max {
		return dst, ErrLength
	}
	head.Reply, head.Server = true, s.life
	head.PayloadBytes, head.PayloadSHA256 = uint32(len(payload)), sha256.Sum256(payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	sign := s.ring.signer(head.KeyID)
	if sign == nil {
		return dst, ErrKeyID
	}
	return appendSingle(dst, head, sign, clock(s.now)), nil
}

func appendSingle(dst []byte, head *SingleHead, sign *signer, at int64) []byte {
	n := LengthBytes + SingleHeadBytes + len(head.Extra) + TrailerBytes
	dst = slices.Grow(dst, n)
	frame := dst[len(dst) : len(dst)+n]
	setLength(frame)
	putSingle(frame[LengthBytes:], head)
	copy(frame[LengthBytes+SingleHeadBytes:], head.Extra)
	sign.sign(frame, at)
	return dst[:len(dst)+n]
}

func putSingle(b []byte, h *SingleHead) {
	b[0], b[1], b[2], b[3] = Version, byte(kindSingle), 0, h.Code
	if h.Reply {
		b[2] = flagFromServer
	}
	binary.LittleEndian.PutUint32(b[4:], h.KeyID)
	copy(b[8:], h.Server[:])
	copy(b[24:], h.Client[:])
	binary.LittleEndian.PutUint64(b[40:], h.Request)
	copy(b[48:], h.PayloadSHA256[:])
	binary.LittleEndian.PutUint32(b[80:], h.PayloadBytes)
	binary.LittleEndian.PutUint16(b[84:], h.Status)
	b[86], b[87] = 0, 0
}

func getSingle(b []byte) SingleHead {
	return SingleHead{
		Code: b[3], Reply: b[2]&flagFromServer != 0, Status: binary.LittleEndian.Uint16(b[84:]),
		KeyID: binary.LittleEndian.Uint32(b[4:]), Server: PeerID(b[8:24]), Client: PeerID(b[24:40]),
		Request: binary.LittleEndian.Uint64(b[40:]), PayloadSHA256: [sha256.Size]byte(b[48:80]),
		PayloadBytes: binary.LittleEndian.Uint32(b[80:]), Extra: b[SingleHeadBytes:],
	}
}

// Open checks the whole frame of a request and returns what its header says. It is accepted
// once, whatever its payload is then. The errors are a Reason: ErrSession names another life of
// a server, ErrBusy says that as many clients are known as may be.
func (s *Singles) Open(frame []byte) (SingleHead, error) {
	if n, err := SingleFrameBytes(frame); err != nil || n != len(frame) {
		return SingleHead{}, s.counters.refuse(ErrLength)
	}
	b := frame[LengthBytes : len(frame)-TrailerBytes]
	head := getSingle(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	reason := s.check(frame, b, &head)
	if reason == 0 {
		reason = s.admit(&head, signedAt(frame))
	}
	if reason != 0 {
		return SingleHead{}, s.counters.refuse(reason)
	}
	s.counters.accept()
	return head, nil
}

// check looks at key and tag, and only then at the rest.
func (s *Singles) check(frame, b []byte, head *SingleHead) Reason {
	if reason := s.ring.check(frame, kindSingle); reason != 0 {
		return reason
	}
	switch {
	case head.Reply:
		return ErrDirection
	case b[2] != 0 || b[86]|b[87] != 0 || head.Status != 0:
		return ErrField
	case !fresh(signedAt(frame), uint64(clock(s.now))):
		return ErrTime
	case head.Server != s.life && (head.Code != s.ask || head.Server != PeerID{}):
		return ErrSession
	case int64(head.PayloadBytes) > s.max:
		return ErrLength
	}
	return 0
}

// admit takes a number of a client's once.
func (s *Singles) admit(head *SingleHead, signed uint64) Reason {
	c := s.clients[head.Client]
	if c == nil {
		if len(s.clients) >= MaxSingleClients && !s.forget() {
			return ErrBusy
		}
		if signed <= s.floor {
			return ErrTime
		}
		c = &singleClient{}
	}
	if c.numbers.check(head.Request) != nil {
		return ErrReplay
	}
	c.numbers.mark(head.Request)
	c.until = max(c.until, signed+uint64(MaxSkew))
	s.clients[head.Client] = c
	return 0
}

// forget forgets clients of which no request could be accepted any more, and reports whether
// there were any.
func (s *Singles) forget() bool {
	now, before := uint64(clock(s.now)), len(s.clients)
	for id, c := range s.clients {
		if c.until < now {
			s.floor = max(s.floor, c.until-uint64(MaxSkew))
			delete(s.clients, id)
		}
	}
	return len(s.clients) < before
}

// Intact compares a payload with the header that came before it, and counts one that differs.
func (s *Singles) Intact(head *SingleHead, payload []byte) bool {
	if sha256.Sum256(payload) == head.PayloadSHA256 && uint32(len(payload)) == head.PayloadBytes {
		return true
	}
	_ = s.counters.refuse(ErrPayload)
	return false
}

// String does not show keys.
func (s *Singles) String() string { return hidden }

// GoString does not, either.
func (s *Singles) GoString() string { return hidden }
