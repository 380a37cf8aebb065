package fabric

import (
	"fmt"

	"github.com/moewire/moewire/core/endpoint"
)

// noteID is a fabric's, drawn when it is opened; zeros: not known.
//
// A signed note names the fabric that says it and the one that it is for: who
// carries notes could else turn one back, or bring it to somebody else, where the
// newer generation in it would end a connection. Fabrics do not know one another's
// ids at first, so a note that is not for the fabric that gets it changes nothing
// there, but is answered by an introduction: the two ids alone, without a note. Its
// receiver says what it had to say again, to the right id. Which number a peer has is
// the caller's word.
type noteID [16]byte

const noteIDsBytes = 2 * len(noteID{})

// sealLocked signs what there is to be said to a peer: first the introduction
// that is owed, then the note, or an introduction in its place while the peer's id
// is not known. The caller holds the lock of notes.
func (f *Fabric) sealLocked(buf []byte, p *peer) (length int, err error) {
	to, says := p.asked, false
	if to == (noteID{}) {
		to, says, p.hasNote = p.theirs, p.theirs != noteID{}, false
	}
	p.asked = noteID{}
	if p.hasNote {
		f.notes.addLocked(p)
	}
	b := append(make([]byte, 0, MaxNoteBytes), signedNoteHead[:]...)
	b = append(append(append(b, byte(f.cfg.Mode)), f.id[:]...), to[:]...)
	if says {
		b = p.note.Append(b)
	}
	signed, err := f.notary.Seal(buf[:0], b)
	return len(signed), err
}

// deliverSigned is Deliver where notes are signed.
func (f *Fabric) deliverSigned(from endpoint.Peer, note []byte) error {
	b, err := f.notary.Open(note)
	if err != nil {
		return fmt.Errorf("%w: %w", endpoint.ErrNote, err)
	}
	if b, err = f.checkHead(from, b, signedNoteHead); err != nil {
		return err
	}
	if len(b) < noteIDsBytes {
		return fmt.Errorf("%w: %d bytes without ids", endpoint.ErrNote, len(b))
	}
	theirs, to, b := noteID(b), noteID(b[len(noteID{}):]), b[noteIDsBytes:]
	if theirs == f.id || theirs == (noteID{}) {
		return fmt.Errorf("%w: this fabric's own, or nobody's", endpoint.ErrNote)
	}
	p, err := f.peerOf(from)
	if err != nil {
		return err
	}
	if isForUs := f.meet(p, theirs, to); !isForUs || len(b) == 0 {
		return nil
	}
	return f.tellStore(from, b)
}

// meet learns a peer's id from what is for this fabric, and says again what
// that peer has not been told; it answers what is not.
func (f *Fabric) meet(p *peer, theirs, to noteID) (isForUs bool) {
	n := &f.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	switch isForUs = to == f.id; {
	case !isForUs:
		p.asked = theirs
	case p.theirs == theirs:
		return true
	default:
		p.theirs, p.hasNote = theirs, p.noted
		if !p.hasNote {
			return true
		}
	}
	n.addLocked(p)
	return isForUs
}
