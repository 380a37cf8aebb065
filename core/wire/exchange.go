package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
)

// advance does what the bytes so far allow.
func (h *Handshake) advance() ([]byte, error) {
	if h.have < LengthBytes {
		return nil, nil
	}
	n, err := helloFrameBytes(h.buf[:])
	if err != nil {
		return nil, h.refuse(ErrLength)
	}
	if h.have < n {
		return nil, nil
	}
	h.have = 0
	frame := h.buf[:n]
	switch h.state {
	case stateHello:
		return h.onHello(frame)
	case stateWelcome:
		return h.onWelcome(frame)
	case stateConfirm:
		return nil, h.onConfirm(frame)
	}
	return nil, h.refuse(ErrKind) // a client that has not started
}

func (h *Handshake) refuse(r Reason) error { return h.config.Counters.refuse(r) }

// fail ends a handshake, which keeps no key.
func (h *Handshake) fail(err error) {
	h.become(stateFailed)
	h.err, h.session, h.hellos = err, nil, nil
	h.forget()
}

// become notes the state, and counts the handshakes that hold keys.
func (h *Handshake) become(s state) {
	switch before := h.state.holdsKeys(); {
	case s.holdsKeys() && !before:
		numOpen.Add(1)
	case before && !s.holdsKeys():
		numOpen.Add(-1)
	}
	h.state = s
}

// forget wipes this handshake's copy of the shared key.
func (h *Handshake) forget() {
	if h.secret != nil {
		clear(h.secret[:])
	}
	h.secret = nil
}

// sendHello begins: with the ring's current key and a new nonce.
func (h *Handshake) sendHello() []byte {
	c := &h.config
	h.keyID, h.secret = c.Keys.currentKey()
	h.hello = helloFrame{
		kind: kindHello, protection: c.Protection, keyID: h.keyID,
		from: c.Self, to: c.Peer, blob: c.Blob,
	}
	h.fill(h.hello.client[:])
	frame := h.hello.encode()
	h.handshakeSigner().sign(frame, clock(c.Now))
	h.hellos = append(h.hellos, frame...)
	h.become(stateWelcome)
	return frame
}

func (h *Handshake) fill(nonce []byte) {
	if _, err := io.ReadFull(h.config.rand, nonce); err != nil {
		panic(err) // crypto/rand never fails
	}
}

// handshakeSigner signs hello, welcome and refusal.
func (h *Handshake) handshakeSigner() *signer {
	return newSigner(derive(h.secret, nil, labelHandshake, KeyBytes))
}

// onHello is the server's answer: a welcome, a refusal, or nothing to a client that does
// not have the key.
func (h *Handshake) onHello(frame []byte) ([]byte, error) {
	h.keyID = helloKeyID(frame) // says which key to try, no more
	h.secret = h.config.Keys.secret(h.keyID)
	if h.secret == nil {
		return nil, h.refuse(ErrKeyID)
	}
	sign := h.handshakeSigner()
	if !sign.genuine(frame) {
		return nil, h.refuse(ErrMAC)
	}
	f, ok := decodeHello(frame)
	if err := h.checkHello(frame, &f, ok); err != nil {
		return h.refusal(frame, &f, sign, err), h.refuse(err.(Reason))
	}
	blob, err := h.accept(&f)
	if err != nil {
		return h.refusal(frame, &f, sign, ErrDeclined), err
	}
	return h.sendWelcome(frame, &f, sign, blob), nil
}

// checkHello looks at a genuine frame. The nonce is noted last.
func (h *Handshake) checkHello(frame []byte, f *helloFrame, ok bool) error {
	if reason := h.check(frame, f, kindHello, ok); reason != 0 {
		return reason
	}
	if f.server != [nonceFieldBytes]byte{} || f.reason != 0 {
		return ErrField
	}
	now := uint64(clock(h.config.Now))
	if reason := h.config.Guard.admit(f.client[:], signedAt(frame), now); reason != 0 {
		return reason
	}
	return nil
}

// check is what all frames of a handshake have in common; 0 is acceptable.
func (h *Handshake) check(frame []byte, f *helloFrame, want kind, ok bool) Reason {
	c := &h.config
	switch {
	case helloVersion(frame) != Version:
		return ErrVersion
	case helloFromServer(frame) == directionOf(h.role):
		return ErrDirection
	case f.kind != want:
		return ErrKind
	case !fresh(signedAt(frame), uint64(clock(c.Now))):
		return ErrTime
	case f.protection != c.Protection:
		return ErrProtection
	case c.Peer != PeerID{} && f.from != c.Peer, f.to != PeerID{} && f.to != c.Self:
		return ErrPeer
	case !ok:
		return ErrField
	}
	return 0
}

// accept asks the caller, and remembers the peer's id.
func (h *Handshake) accept(f *helloFrame) ([]byte, error) {
	h.peer = Peer{ID: f.from, KeyID: f.keyID, Blob: append([]byte(nil), f.blob...)}
	if h.config.Accept == nil {
		return h.config.Blob, nil
	}
	blob, err := h.config.Accept(h.peer)
	if err == nil && len(blob) > MaxBlobBytes {
		err = fmt.Errorf("the blob of Accept has %d bytes, at most %d are allowed", len(blob), MaxBlobBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", h.refuse(ErrDeclined), err)
	}
	return blob, nil
}

// refusal answers a genuine hello that will not be served. Anything else that
// is genuine gets none, so that two sides never answer each other's refusals.
func (h *Handshake) refusal(frame []byte, f *helloFrame, sign *signer, err error) []byte {
	if !isHello(frame) || helloFromServer(frame) != 0 {
		return nil
	}
	answer := helloFrame{
		kind: kindRefusal, protection: h.config.Protection, flags: flagFromServer,
		keyID: h.keyID, client: f.client, from: h.config.Self, to: f.from, reason: err.(Reason),
	}
	out := answer.encode()
	sign.sign(out, clock(h.config.Now))
	return out
}

func (h *Handshake) sendWelcome(hello []byte, f *helloFrame, sign *signer, blob []byte) []byte {
	h.hello = helloFrame{
		kind: kindWelcome, protection: h.config.Protection, flags: flagFromServer,
		keyID: h.keyID, client: f.client, from: h.config.Self, to: f.from, blob: blob,
	}
	h.fill(h.hello.server[:])
	out := h.hello.encode()
	sign.sign(out, clock(h.config.Now))
	h.hellos = append(append(h.hellos, hello...), out...)
	h.establish(&h.hello)
	h.become(stateConfirm)
	return out
}

// onWelcome is the client's last step: the answer to its own hello, or nothing.
func (h *Handshake) onWelcome(frame []byte) ([]byte, error) {
	switch {
	case helloKeyID(frame) != h.keyID:
		return nil, h.refuse(ErrKeyID)
	case !h.handshakeSigner().genuine(frame):
		return nil, h.refuse(ErrMAC)
	}
	f, ok := decodeHello(frame)
	if f.kind == kindRefusal && h.answered(frame, &f) {
		_ = h.refuse(f.reason)
		return nil, &RefusedError{Reason: f.reason}
	}
	if reason := h.check(frame, &f, kindWelcome, ok); reason != 0 {
		return nil, h.refuse(reason)
	}
	if !h.answered(frame, &f) {
		return nil, h.refuse(ErrReplay)
	}
	if _, err := h.accept(&f); err != nil {
		return nil, err
	}
	h.hellos = append(h.hellos, frame...)
	h.establish(&f)
	return h.sendConfirm(&f), nil
}

// answered reports whether a server has signed this for the present hello.
func (h *Handshake) answered(frame []byte, f *helloFrame) bool {
	return helloFromServer(frame) != 0 && f.client == h.hello.client
}

// sendConfirm shows the server that this client lives and has the key: the
// first frame under the session's own key.
func (h *Handshake) sendConfirm(welcome *helloFrame) []byte {
	answer := helloFrame{
		kind: kindConfirm, protection: h.config.Protection, keyID: h.keyID,
		client: welcome.client, server: welcome.server, from: h.config.Self, to: welcome.from,
	}
	out := answer.encode()
	h.session.out.sign(out, clock(h.config.Now))
	h.become(stateDone)
	h.config.Counters.accept()
	return out
}

// onConfirm ends the server's part.
func (h *Handshake) onConfirm(frame []byte) error {
	if !h.session.in.genuine(frame) {
		return h.refuse(ErrMAC)
	}
	f, ok := decodeHello(frame)
	if reason := h.check(frame, &f, kindConfirm, ok); reason != 0 {
		return h.refuse(reason)
	}
	if f.client != h.hello.client || f.server != h.hello.server || f.from != h.peer.ID || f.keyID != h.keyID {
		return h.refuse(ErrReplay)
	}
	h.become(stateDone)
	h.config.Counters.accept()
	return nil
}

// establish derives the session: its keys depend on the shared key, both
// nonces, and every byte of hello and welcome.
func (h *Handshake) establish(welcome *helloFrame) {
	salt := append(append([]byte(nil), welcome.client[:]...), welcome.server[:]...)
	transcript := sha256.Sum256(h.hellos)
	key := func(label string, n int) []byte {
		return derive(h.secret, salt, label+string(transcript[:]), n)
	}
	out, in := fromClient, fromServer
	if h.role == RoleServer {
		out, in = in, out
	}
	h.session = &Session{
		role: h.role, protection: h.config.Protection, ordered: h.config.Ordered, apart: h.config.Apart,
		export: [KeyBytes]byte(key(labelExport, KeyBytes)),
		keyID:  h.keyID, id: binary.LittleEndian.Uint64(key(labelSession, sessionIDBytes)),
		maxPayload: h.config.MaxPayloadBytes, codes: h.config.Codes,
		counters: h.config.Counters, now: h.config.Now,
		out: newSigner(key(labelHeader+out, KeyBytes)), in: newSigner(key(labelHeader+in, KeyBytes)),
	}
	h.session.protect(key(labelPayload+out, KeyBytes), key(labelPayload+in, KeyBytes))
	h.hellos = nil
	h.forget()
}
