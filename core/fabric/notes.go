package fabric

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// noteHead precedes every note: what it is, and the fabric's mode. Both ends
// must have the same, so a note with another one is refused.
var (
	noteHead       = [...]byte{'M', 'W', 'F', 1}
	signedNoteHead = [...]byte{'M', 'W', 'F', 3}
)

const noteHeadBytes = len(noteHead) + 1

// MaxNoteBytes bounds a note.
const MaxNoteBytes = noteHeadBytes + noteIDsBytes + endpoint.MaxNoteBytes + wire.NoteOverheadBytes

// notes are those to be carried: of each peer only the newest, because a note
// states all that its sender has to say.
type notes struct {
	mu    sync.Mutex
	queue []*peer // in the order in which they came to have one
	ready chan struct{}
}

// addLocked puts a peer into the queue, unless it is there.
func (n *notes) addLocked(p *peer) {
	if !p.queued {
		p.queued = true
		n.queue = append(n.queue, p)
	}
	n.rouseLocked()
}

func newNotes(n int) notes { return notes{queue: make([]*peer, 0, n)} }

// rouse makes everybody who waits look again.
func (n *notes) rouse() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rouseLocked()
}

func (n *notes) rouseLocked() {
	if n.ready != nil {
		close(n.ready)
		n.ready = nil
	}
}

// keepNote takes a note from the store, in place of an older one.
func (f *Fabric) keepNote(to endpoint.Peer, note endpoint.Note) {
	p, err := f.peerOf(to)
	if err != nil {
		return // the store has the same bound: it says it again
	}
	n := &f.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	if !p.hasNote {
		p.hasNote, p.noted = true, true
	} else if older(&note, &p.note) {
		p.note.Asks = p.note.Asks || note.Asks
		return
	} else {
		note.Asks = note.Asks || p.note.Asks
	}
	address := append(p.note.Address[:0], note.Address...)
	p.note = note
	p.note.Address = address
	n.addLocked(p)
}

// older reports whether a is a former state of the sender than b. Two threads
// may come with their notes in either order.
func older(a, b *endpoint.Note) bool {
	switch {
	case a.Gen != b.Gen:
		return a.Gen < b.Gen
	case a.SeenEpoch != b.SeenEpoch:
		return a.SeenEpoch < b.SeenEpoch
	case a.SeenGen != b.SeenGen:
		return a.SeenGen < b.SeenGen
	}
	return b.Ready && !a.Ready
}

// Next takes the next note to be carried out, into buf, which has at least
// MaxNoteBytes, and says to whom. ok is false if there is none until the
// deadline. A note may be lost, and may come twice or late.
func (f *Fabric) Next(buf []byte, deadline time.Time) (to endpoint.Peer, length int, ok bool, err error) {
	if len(buf) < MaxNoteBytes {
		return 0, 0, false, invalid("room for a note is %d bytes, needed are %d", len(buf), MaxNoteBytes)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for late := false; ; {
		if err := f.refusal(); err != nil {
			return 0, 0, false, err
		}
		to, length, ready, err := f.takeNote(buf)
		if ready == nil {
			return to, length, err == nil, err
		}
		if late {
			return 0, 0, false, nil
		}
		select {
		case <-ready:
		case <-timer.C:
			late = true
		}
	}
}

// takeNote encodes the oldest note, or returns what is closed when there is
// news.
func (f *Fabric) takeNote(buf []byte) (to endpoint.Peer, length int, ready <-chan struct{}, err error) {
	n := &f.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		if n.ready == nil {
			n.ready = make(chan struct{})
		}
		return 0, 0, n.ready, nil
	}
	p := n.queue[0]
	n.queue = n.queue[:copy(n.queue, n.queue[1:])]
	p.queued = false
	length, err = f.encodeLocked(buf, p)
	return p.id, length, nil, err
}

// encodeLocked writes what there is to be said to a peer.
func (f *Fabric) encodeLocked(buf []byte, p *peer) (length int, err error) {
	if f.notary != nil {
		return f.sealLocked(buf, p)
	}
	p.hasNote = false
	b := append(buf[:0], noteHead[:]...)
	return len(p.note.Append(append(b, byte(f.cfg.Mode)))), nil
}

// checkHead returns what follows the head of a note.
func (f *Fabric) checkHead(from endpoint.Peer, b []byte, head [len(noteHead)]byte) ([]byte, error) {
	if len(b) < noteHeadBytes || !bytes.Equal(b[:len(head)], head[:]) {
		return nil, fmt.Errorf("%w: %d bytes that no fabric of this version has written", endpoint.ErrNote, len(b))
	}
	if theirs := Mode(b[len(head)]); theirs != f.cfg.Mode {
		return nil, fmt.Errorf("%w: this fabric is for %v, that of peer %d for %v", transport.ErrMismatch, f.cfg.Mode, from, theirs)
	}
	return b[noteHeadBytes:], nil
}

// Deliver takes a note that a peer's fabric has given to be carried here. One
// that is too old changes nothing.
func (f *Fabric) Deliver(from endpoint.Peer, note []byte) error {
	if err := f.refusal(); err != nil {
		return err
	}
	if f.notary != nil {
		return f.deliverSigned(from, note)
	}
	b, err := f.checkHead(from, note, noteHead)
	if err != nil {
		return err
	}
	return f.tellStore(from, b)
}

func (f *Fabric) tellStore(from endpoint.Peer, b []byte) error {
	n, err := endpoint.ParseNote(b)
	if err != nil {
		return err
	}
	if _, err := f.peerOf(from); err != nil {
		return err
	}
	f.store.Deliver(from, n)
	return nil
}
