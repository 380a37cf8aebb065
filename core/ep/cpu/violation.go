package cpu

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// Words that other processes can write are input. Each is read once, into a value of
// this rank's own, and compared with what its writer can have stored by then. Every
// other value is a violation. It costs the owner of the word its membership, because
// this rank cannot know which process wrote it.

// violation is a word that no rank can have stored.
type violation struct {
	owner   int // the rank that has it in its memory
	word    string
	held    uint64
	allowed string
}

func (v *violation) Error() string {
	return fmt.Sprintf("its memory was overwritten: %s of rank %d holds %#x, allowed: %s", v.word, v.owner, v.held, v.allowed)
}

// violates notes a word of a rank. A peer is taken out of the group at once; this rank
// leaves at the end of the step. Buffer.mu is held.
func (b *Buffer) violates(v violation) {
	if v.owner == b.self {
		if b.hurt == nil {
			b.hurt = &v
		}
		return
	}
	b.countViolation(v.owner)
	b.keepLoss(v.owner, ep.Loss{Why: v.Error(), Op: b.next})
	if !membership.Fence(b.word, b.epoch, b.self, v.owner) {
		return // it is out, or others have to agree: the next step finds the word again
	}
	b.lost.Add(1)
	b.known = b.known.Without(v.owner)
	b.recordViolation(&v)
	b.wakeAll()
}

// countViolation counts each rank once in an epoch, however often its word is read.
func (b *Buffer) countViolation(rank int) {
	if b.violators.Has(rank) {
		return
	}
	b.violators = b.violators.With(rank)
	b.count.violations++
	b.reportViolations()
}

// reportViolations shows the count to other processes.
func (b *Buffer) reportViolations() { b.rec.Area.SetViolations(b.count.violations + b.word.Repaired()) }

func (b *Buffer) recordViolation(v *violation) { b.noteLost(v.owner, v.Error()) }

func (b *Buffer) noteLost(rank int, why string) {
	b.rec.Note(telemetry.Event{
		Kind: telemetry.Lost, Rank: rank, PID: b.rec.PID(rank), Epoch: b.epoch, Op: b.next, Why: why,
	})
}

// surrender ends this rank's part in its epoch when its own memory was overwritten: it
// takes no other rank out. It returns the reason, nil if nothing was found. Buffer.mu is
// held.
func (b *Buffer) surrender() error {
	if b.hurt == nil || !b.life.IsMember() {
		return nil
	}
	v := b.hurt
	b.countViolation(b.self)
	b.recordViolation(v)
	b.leaveFor(membership.Fenced, ep.FencedFor(v.Error()))
	b.damaged, b.hurt = true, nil
	return b.life.Why()
}

// published is what this rank has stored in its own control page. No other rank stores
// there: another value is a violation.
type published struct {
	open, yReady [protocol.MaxSlotsCPU]uint64
	quiesced     uint64
}

func (b *Buffer) publishOpen(slot int, word uint64) {
	b.published.open[slot] = word
	openWord(&b.peers[b.self], slot).Store(word)
}

func (b *Buffer) publishYReady(slot int, word uint64) {
	b.published.yReady[slot] = word
	yReadyWord(&b.peers[b.self], slot).Store(word)
}

// findsItselfHurt checks this rank's own words while it waits, because others may wait for
// them. It reports whether this rank has left because of a violation.
func (b *Buffer) findsItselfHurt() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isMember() {
		b.checkOwn()
	}
	return b.surrender() != nil
}

// checkOwn compares the words of this rank with what it has stored: it finds a wild one
// before another rank is blamed for the consequences.
func (b *Buffer) checkOwn() {
	own := &b.peers[b.self]
	for j := range b.slots {
		if held := openWord(own, j).Load(); held != b.published.open[j] {
			b.violates(b.notMine("open", j, held, b.published.open[j]))
		}
		if held := yReadyWord(own, j).Load(); held != b.published.yReady[j] {
			b.violates(b.notMine("y_ready", j, held, b.published.yReady[j]))
		}
		if s := &b.slots[j]; s.own != nil {
			b.checkRowOrder(s)
		}
	}
	if held := own.Quiesced().Load(); held != b.published.quiesced {
		b.violates(violation{b.self, "quiesced", held, fmt.Sprintf("%#x, which this rank has stored", b.published.quiesced)})
	}
	if held, shown, ok := b.waits.intact(own); !ok {
		b.violates(violation{b.self, "waits_for or since", held, fmt.Sprintf("%#x, which this rank has stored", shown)})
	}
	if b.hasOwn != nil {
		if err := b.hasOwn.CheckOwn(); err != nil {
			b.violates(violation{b.self, "the slab table", 0, err.Error()})
		}
	}
}

// checkRowOrder compares `order` and its set with what this rank has stored: only the
// owner writes these two.
func (b *Buffer) checkRowOrder(s *slot) {
	word, set := s.own.seg.Word(layout.RowOrder()).Load(), rankset.FromWord(s.own.seg.Word(layout.RowOrderMembers()).Load())
	if word != s.own.rowOrder {
		b.violates(b.notMine("order", s.index, word, s.own.rowOrder))
	}
	if set != s.own.rowOrderMembers {
		b.violates(b.notMine("the ranks of order", s.index, set.Word(), s.own.rowOrderMembers.Word()))
	}
}

func (b *Buffer) notMine(name string, slot int, held, stored uint64) violation {
	return violation{b.self, inSlot(name, slot), held, fmt.Sprintf("%#x, which this rank has stored", stored)}
}

func inSlot(name string, slot int) string { return fmt.Sprintf("%s[%d]", name, slot) }

// openFor reads open[j] of rank r: the id of the slab that may be written for an
// operation which this rank has not finished there.
func (b *Buffer) openFor(r, j int, n uint64) (id int, open bool) {
	word := openWord(&b.peers[r], j).Load()
	if protocol.IsFor(word, n) {
		return protocol.DetailOf(word), true
	}
	// An owner goes on without us once we are out: then our own bit is cleared by now.
	if protocol.IsPast(word, n) && b.isMember() {
		b.violates(violation{r, inSlot("open", j), word, fmt.Sprintf("operations up to %d", n)})
	}
	return 0, false
}

// cameFor reads a sealed word of a source in our slab, which serves operation n.
func (b *Buffer) cameFor(s *slot, off int64, source int, n uint64) bool {
	word := s.own.seg.Word(off).Load()
	if word == protocol.Sealed(n, source) {
		return true
	}
	if !protocol.IsSealed(word, source) || protocol.IsPast(word, n) {
		b.violates(violation{
			b.self, fmt.Sprintf("arrive or counted of rank %d in slot %d", source, s.index), word,
			fmt.Sprintf("sealed operations up to %d", n),
		})
	}
	return false
}

// doneOf reads done[t] of our slab for operation n.
func (b *Buffer) doneOf(s *slot, t int, n uint64) (combines int, last, is bool) {
	word := s.own.seg.Word(layout.Done(t)).Load()
	if protocol.IsPast(word, n) {
		b.violates(violation{
			b.self, fmt.Sprintf("done of rank %d in slot %d", t, s.index), word, fmt.Sprintf("operations up to %d", n),
		})
	}
	return protocol.Combines(word), protocol.IsLast(word), protocol.IsFor(word, n)
}

// ownMemory is a domain that keeps words in this rank's memory which peers can write.
type ownMemory interface {
	CheckOwn() error // whether they still are what the domain has stored
	RestoreOwn()     // stores them again
}

// maxReserved is more than any ranks reserve of an expert, whatever shapes they call
// with: each at most limits.Selections rows.
const maxReserved = rankset.MaxRanks << 31

// lack notes that an owner has no room for our rows. This also happens to ranks that
// disagree about the shape: their parameters tell, once all are here (agree). A word that
// no shape explains is a violation now.
func (b *Buffer) lack(s *slot, v violation) {
	s.lacks = append(s.lacks, v)
	s.spoiled = s.spoiled.With(v.owner)
	if v.held > maxReserved {
		b.violates(v)
	}
}

var errNoCapacity = fmt.Errorf("%w: a peer's slot had no room for this rank's rows", ep.ErrMismatch)

// agreeOnCapacity is for ranks with the same parameters. If an owner then has no room
// for our rows, its memory was overwritten. A source that was lost may have taken the room
// in another shape.
func (b *Buffer) agreeOnCapacity(s *slot) error {
	members := b.members()
	for _, v := range s.lacks {
		switch {
		case !members.Has(v.owner): // it is out, and costs us nothing more
		case b.misses(s):
			return errNoCapacity
		default:
			b.violates(v)
		}
	}
	for r := range b.remoteOf(s.counted).All() { // what we have reserved for sources
		if in := &s.remote[r].in; in.op == s.op+1 && in.short.word != "" {
			if b.misses(s) {
				return errNoCapacity
			}
			b.violates(in.short)
		}
	}
	return b.surrender()
}

// localSlab returns the slab that owner r says is open in slot j; nil: it has no such slab.
func (b *Buffer) localSlab(r, j, id int) (domain.Segment, error) {
	slab, err := b.dom.Slab(r, id)
	switch {
	case errors.Is(err, domain.ErrCorrupt):
		b.violates(violation{r, inSlot("the slab of open", j), uint64(id), err.Error()})
		return nil, nil
	case err == nil && slab.SizeBytes() < layout.HeaderBytes:
		b.violates(violation{r, inSlot("the bytes of slab", id), uint64(slab.SizeBytes()), fmt.Sprintf("%d and more", layout.HeaderBytes)})
		return nil, nil
	}
	return slab, err
}

// paramsOf reads the parameters of a source that has arrived.
func (b *Buffer) paramsOf(s *slot, t int) (p params, ok bool) {
	n, p, ok := loadParams(s.own.seg, t)
	if ok = ok && n == s.op; !ok {
		b.violates(violation{b.self, fmt.Sprintf("params of rank %d in slot %d", t, s.index), n + 1, fmt.Sprintf("a sealed record of operation %d", s.op)})
	}
	return p, ok
}

// restoreOwn makes this rank's memory good again between two epochs. Only suspects write to
// it then, and their slabs are replaced. It stores this rank's own words in any case:
// others may have found one wild that this rank has not looked at.
func (b *Buffer) restoreOwn() {
	own := &b.peers[b.self]
	for j := range b.slots {
		b.publishOpen(j, b.published.open[j])
		b.publishYReady(j, b.published.yReady[j])
	}
	own.Quiesced().Store(b.published.quiesced)
	b.waits.restore(own)
	if b.hasOwn != nil {
		b.hasOwn.RestoreOwn()
	}
	if b.damaged || b.hurt != nil {
		b.resetSlabs()
	}
	b.hurt = nil
}

func (b *Buffer) resetSlabs() {
	for j := range b.slots {
		if own := b.slots[j].own; own != nil && len(own.suspects) == 0 {
			own.reset()
		}
	}
}
