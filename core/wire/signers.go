package wire

import "encoding/binary"

// ringSigners are the signers of a ring's keys for one use. They follow a Reload. For one
// goroutine at a time.
type ringSigners struct {
	keys  *Keyring
	label string
	signs map[uint32]*ringSigner // by key id
}

// ringSigner is one key's, until a Reload changes the key.
type ringSigner struct {
	*signer
	of uint64 // the ring's reading
}

func newRingSigners(keys *Keyring, label string) ringSigners {
	return ringSigners{keys: keys, label: label, signs: map[uint32]*ringSigner{}}
}

// current is the signer of the ring's current key. A ring that is closed has none: then
// the frame is signed with a key that no process has.
func (r *ringSigners) current() (id uint32, sign *signer) {
	for range 4 { // it may be read anew in between
		id = r.keys.Current()
		if sign = r.signer(id); sign != nil {
			return id, sign
		}
	}
	return id, newSigner(nobodysKey()[:])
}

// check says why a frame of at least eight bytes of header is not one that a key's holder has
// made, of this version and kind: the key's id stands at offset 4.
func (r *ringSigners) check(frame []byte, want kind) Reason {
	b := frame[LengthBytes:]
	sign := r.signer(binary.LittleEndian.Uint32(b[4:]))
	switch {
	case sign == nil:
		return ErrKeyID
	case !sign.genuine(frame):
		return ErrMAC
	case b[0] != Version:
		return ErrVersion
	case kind(b[1]) != want:
		return ErrKind
	}
	return 0
}

// signer is that of a key; nil if there is no such key.
func (r *ringSigners) signer(id uint32) *signer {
	reading := r.keys.Reading()
	if s := r.signs[id]; s != nil && s.of == reading {
		return s.signer
	}
	secret := r.keys.secret(id)
	if secret == nil {
		delete(r.signs, id)
		return nil
	}
	defer clear(secret[:])
	s := &ringSigner{newSigner(derive(secret, nil, r.label, KeyBytes)), reading}
	if len(r.signs) >= MaxNumKeys {
		clear(r.signs) // of rings that were
	}
	r.signs[id] = s
	return s.signer
}
