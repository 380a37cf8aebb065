package client

import (
	"errors"
	"fmt"
	"io"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// copyBytes is how much of a block is copied at a time: it is in the cache when it is tagged.
const copyBytes = 64 << 10

// errArena means that the server's arena cannot be read.
var errArena = errors.New("the server's arena cannot be read")

// fetch reads the reply to a get that says where blocks lie, and copies them from there.
func (l *link) fetch(head *wire.Head, t *part) error {
	n := len(t.keys)
	if head.PayloadBytes != int64(n*message.LookupBytes) {
		return message.ErrMalformed
	}
	table := l.room(n * message.LookupBytes)
	if err := l.in.Read(table); err != nil {
		return err
	}
	if err := l.in.End(); err != nil {
		return err
	}
	for i := range n {
		var e message.Entry
		place, err := e.DecodePlaced(table[i*message.LookupBytes:(i+1)*message.LookupBytes], l.arenaBytes)
		if err != nil {
			return err
		}
		if err := l.copyBlock(t, i, &e, int64(place)); err != nil {
			return err
		}
	}
	return nil
}

// copyBlock copies a block to where it belongs. A block with bytes that are not its own any more may have moved, or may be
// spoiled: the server is asked to send it.
func (l *link) copyBlock(t *part, i int, e *message.Entry, place int64) error {
	f := outcomeNone
	if e.Status == message.OK {
		var err error
		if f, err = l.copied(t, i, e, place); err != nil {
			return err
		}
	}
	if f == outcomeBad {
		l.sendAgain(t, i)
		return nil
	}
	l.note(t, i, e, f)
	return nil
}

func (l *link) copied(t *part, i int, e *message.Entry, place int64) (outcome, error) {
	dst := t.place(i, e, true)
	if dst == nil && e.Bytes > 0 {
		return outcomeNone, nil
	}
	l.checker.Begin(t.keys[i], int(e.Bytes))
	left := int(e.Bytes)
	for _, p := range dst {
		p = p[:min(len(p), left)]
		left -= len(p)
		for len(p) > 0 {
			n := min(len(p), copyBytes)
			if err := take(l.view, place, p[:n], l.checker); err != nil {
				return outcomeBad, l.unreadable(err)
			}
			l.wrote.Store(stream.Now()) // what runs goes on
			p, place = p[n:], place+int64(n)
		}
	}
	if l.checker.Tag() != e.Tag {
		l.peer.client.counts.Moved.Add(1)
		return outcomeBad, nil
	}
	return outcomeGood, nil
}

// take fills p with the bytes of a block from a place on, and gives them to its tagger. The tag is of what is in p then,
// not of the arena, which changes.
func take(v *local.View, place int64, p []byte, t *tag.Tagger) error {
	if !v.Mapped() {
		if err := v.Read(place, p); err != nil {
			return err
		}
		t.Write(p)
		return nil
	}
	there, err := v.Bytes(place, len(p))
	if err == nil {
		t.Copy(p, there)
	}
	return err
}

// unreadable counts why a block could not be read where it lies: it is to be sent. Where that says something of the
// whole arena, the arena is given up; and where nothing else may bring blocks the link ends.
func (l *link) unreadable(err error) error {
	counts := &l.peer.client.counts
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF): // a server that starts again may cut its file
		counts.Moved.Add(1)
		return nil
	case errors.Is(err, sys.ErrAgain):
		counts.NotCached.Add(1)
		return nil
	}
	counts.Unreadable.Add(1)
	switch {
	case sys.IsUnreadable(err) || sys.IsShortage(err):
		return nil
	case l.peer.client.cfg.Carrier == CarrierSHM:
		return fmt.Errorf("%w: %w", errArena, err)
	}
	l.peer.latch(err)
	return nil
}

// sendAgain asks for a block over the connection.
func (l *link) sendAgain(t *part, i int) {
	if t.call == nil {
		return
	}
	again := &part{
		call: t.call, code: message.Get, at: t.at[i : i+1], keys: t.keys[i : i+1], timeout: t.timeout,
		begun: stream.Now(), again: true,
	}
	if t.bufs != nil {
		again.bufs = t.bufs[i : i+1]
	}
	t.call.left.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, again) // run completes it, if the link has ended
	l.wake.Signal()
}
