package multihost

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/link"
)

// A rank that asks for another one to go out tells all ranks why. The reason decides nothing: it is
// for people, who read it on every rank.

// A reason is said again while its rank asks, and is stale if it was last said some time before
// the rank that it is about went out.
const (
	sayEvery   = 200 * time.Millisecond
	staleAfter = 2 * time.Second
)

// maxReasonBytes is the longest text of a reason.
const maxReasonBytes = 400

// reasonHead is what lies before the text: the rank that has to go, and the epoch.
const reasonHead = 1 + 2

// reason is why a rank has to go out, as the latest rank has said. view.mu guards it.
type reason struct {
	said string    // by this rank
	due  time.Time // before that this rank does not say it again
	text string    // of another rank
	at   time.Time // when that was said last
	out  time.Time // when the rank went out; zero: it is in
}

// Explain tells all other ranks why this rank has asked for a rank to go out, and what this rank
// waited for. It waits for nothing. A text that is too long is cut off.
func (d *Domain) Explain(rank int, why, wait string) {
	m := d.now.Load()
	if m == nil || m.view == nil || rank < 0 || rank >= rankset.MaxRanks {
		return
	}
	controls, epoch, due := m.view.mayExplain(rank, why, time.Now())
	if !due || controls == nil {
		return
	}
	text := why + wait
	b := binary.LittleEndian.AppendUint16([]byte{kindWhy, byte(rank)}, uint16(epoch))
	b = append(b, text[:min(len(text), maxReasonBytes)]...)
	for r := range controls.Ranks().All() {
		controls.Send(r, b) // else there is no room: it is said again
	}
}

// mayExplain reports whether a reason is to be said now: it is new, or was said a while ago.
func (v *view) mayExplain(rank int, why string, now time.Time) (controls *link.Controls, epoch membership.Epoch, due bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	is := &v.reasons[rank]
	if due = why != is.said || !now.Before(is.due); due {
		is.said, is.due = why, now.Add(sayEvery)
	}
	return v.controls.Load(), v.epoch, due
}

// takeWhy is told why a rank wants another one out, or this one.
func (v *view) takeWhy(from int, m []byte) {
	if len(m) <= reasonHead || len(m) > reasonHead+maxReasonBytes {
		return
	}
	rank, epoch := int(m[0]), membership.Epoch(binary.LittleEndian.Uint16(m[1:]))
	v.mu.Lock()
	defer v.mu.Unlock()
	if rank == from || rank >= rankset.MaxRanks || !v.installed || epoch != v.epoch {
		return
	}
	v.reasons[rank].text = fmt.Sprintf("rank %d says: %s", from, printable(string(m[reasonHead:])))
	v.reasons[rank].at = time.Now()
}

// printable is a text of another rank as it may stand in a line of a log.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// dateReasons notes when ranks go out. The caller holds v.mu.
func (v *view) dateReasons() {
	for r := range v.participants.present.Minus(v.agreement.word()).All() {
		if v.reasons[r].out.IsZero() {
			v.reasons[r].out = time.Now()
		}
	}
}

// Explained is what another rank has said of why a rank had to go out, if that was said until it
// went; else "". Of this rank itself, too.
func (d *Domain) Explained(rank int) string {
	m := d.now.Load()
	if m == nil || m.view == nil || rank < 0 || rank >= rankset.MaxRanks {
		return ""
	}
	v := m.view
	v.mu.Lock()
	defer v.mu.Unlock()
	is := &v.reasons[rank]
	out := is.out
	if out.IsZero() {
		out = time.Now()
	}
	if out.Sub(is.at) > staleAfter {
		return "" // that has passed, and it went for another reason
	}
	return is.text
}
