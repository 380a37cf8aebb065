package mixed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// view is what one meeting has made of a group with far ranks: its
// connections, its links, and its council. It implements link.Handler.
type view struct {
	cfg      *Config
	near     transport.Domain
	roster   *roster
	controls atomic.Pointer[link.Controls]
	peers    [transport.MaxRanks]*peer // far ranks
	paths    []Path

	notes   chan note   // to whoever holds the meeting
	meeting atomic.Bool // somebody reads the notes
	live    atomic.Bool // it is the domain's
	born    time.Time
	beaten  atomic.Int64 // the latest Tick, after born
	tally   *tally
	sights  [transport.MaxRanks]sight
	ended   uint64                     // of watchNear: processes of this host
	told    [transport.MaxRanks]uint64 // of these, by far rank

	beating sync.Mutex // held from reading the words until they are queued: mu is taken under it

	mu        sync.Mutex // guards what follows
	council   *council
	installed bool
	epoch     uint16 // once installed
	ticked    time.Time
	beat      []byte
	silent    uint64 // counted already
}

// note is an event for a meeting.
type note struct {
	rank int
	kind byte
	text []byte
	how  link.Ending
	err  error
}

// Kinds of control messages, in the first byte; and of notes.
const (
	kindBeat = iota + 1
	kindLetter
	kindCarriers // names, by preference, separated by commas
	kindOffer    // nothing: none could be made
	kindLinked   // the offer was taken
	kindTried    // nothing: bytes arrive; else why not, in words
	kindReady
	kindAbort  // a reason
	kindRemake // link.Link's, about itself
	kindEnded  // ranks of the sender's host whose processes have ended
	noteUp
	noteEnded
)

// maxNotes is more than a meeting has.
const maxNotes = 8 * transport.MaxRanks

func newView(cfg *Config, near transport.Domain, r *roster) *view {
	now := time.Now()
	v := &view{
		cfg: cfg, near: near, roster: r, tally: &tally{}, notes: make(chan note, maxNotes), born: now, ticked: now,
		council: newCouncil(r.self, r.present, rules{
			bound:   cfg.Bound,
			retry:   min(max(cfg.Bound/20, 2*time.Millisecond), 50*time.Millisecond),
			patient: max(cfg.Bound/2, 4*cfg.Heartbeat),
		}, now),
	}
	v.meeting.Store(true)
	return v
}

// note tells the meeting, which reads as long as it lasts.
func (v *view) note(n note) {
	if !v.meeting.Load() {
		return
	}
	select {
	case v.notes <- n:
	default: // more than any rank would say
	}
}

// Up is part of link.Handler.
func (v *view) Up(rank int) { v.note(note{rank: rank, kind: noteUp}) }

// Ended is part of link.Handler.
func (v *view) Ended(rank int, how link.Ending, err error) {
	v.note(note{rank: rank, kind: noteEnded, how: how, err: err})
	v.countEnd(rank, how)
	if p := v.peers[rank]; p != nil && how == link.EndDead {
		p.die(err)
	}
	if p := v.peers[rank]; p != nil {
		if l := p.link.Load(); l != nil {
			l.StopRemaking(err)
		}
	}
	if how != link.EndBroken { // else silence is all that is known
		v.act(func(c *council, now time.Time) { c.ended(now, rank) })
	}
}

// Heard is part of link.Handler.
func (v *view) Heard(rank int, m []byte) {
	if len(m) == 0 {
		return
	}
	v.sights[rank].hear()
	kind, m := m[0], m[1:]
	switch {
	case kind == kindBeat:
		m = v.takeWords(rank, m)
		fallthrough
	case kind == kindLetter:
		if l, err := parseLetter(m); err == nil {
			l.from = rank
			v.act(func(c *council, now time.Time) { c.receive(now, &l) })
		}
	case kind == kindRemake:
		if p := v.peers[rank]; p != nil {
			if l := p.link.Load(); l != nil {
				l.Hear(m)
			}
		}
	case kind == kindEnded:
		v.takeEnded(rank, m)
	case kind < noteUp:
		v.note(note{rank: rank, kind: kind, text: bytes.Clone(m)})
	}
}

// Tick is part of link.Handler.
func (v *view) Tick() {
	v.act(func(c *council, now time.Time) {
		if gap := now.Sub(v.ticked); gap > 4*v.cfg.Heartbeat {
			c.excuse(now, gap) // this process was not running
		}
		v.ticked = now
		c.tick(now)
	})
	v.watchNear()
	v.tellBeat()
	v.remind()
	v.beaten.Store(int64(time.Since(v.born)))
	v.report()
}

// Crashed is part of link.Handler. Without ticks no change of the group would
// ever come, nor would anybody notice that it cannot: waits for far ranks would
// have no end. So this rank leaves, on its host at once; others see its
// connections end. The council is not asked: it may be what has crashed.
func (v *view) Crashed(error) {
	page, self := v.near.Members(), uint64(1)<<v.roster.self
	for old := page.Load(); v.isOf(epochOf(old)) && old&self != 0; old = page.Load() {
		if page.CompareAndSwap(old, old&^self) {
			v.ringAll()
			return
		}
	}
}

// wordAge is how old the copies of far ranks' words may be. They come on the
// goroutine that ticks: where that gets no processor they are older.
func (v *view) wordAge() time.Duration {
	return v.cfg.Heartbeat + time.Since(v.born) - time.Duration(v.beaten.Load())
}

// act lets the council do something and carries out what comes of it. Letters
// are queued under the lock, which keeps their order.
func (v *view) act(f func(c *council, now time.Time)) {
	suspects, out, changed := v.decide(f)
	for r := range members(v.roster.far()) {
		if s := suspects>>r&1 == 1; v.peers[r].suspect.Swap(s) != s {
			changed = changed || s
		}
	}
	v.revoke(out)
	if changed {
		v.ringAll()
	}
}

// decide is the part of act under the lock, which a council that panics leaves
// open.
func (v *view) decide(f func(c *council, now time.Time)) (suspects, out uint64, changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.council
	v.learn()
	f(c, time.Now())
	v.post()
	v.count()
	return c.gone | c.silent, v.roster.present &^ c.set, v.publish()
}

// revoke ends the links to those who were taken out: nobody looks at what they
// still send, which may land in the rings of these links until their endpoints
// are retired. What was taken from them before stays.
func (v *view) revoke(out uint64) {
	if !v.live.Load() {
		return
	}
	for r := range members(out & v.roster.far()) {
		if l := v.peers[r].link.Load(); l.Err() == nil {
			l.Break(errOut)
		}
	}
}

// remakeLinks makes links that break be made again, as long as the meeting's
// connections last.
func (v *view) remakeLinks(links []*link.Link) {
	for rank, l := range links {
		if l != nil {
			l.Remake(link.Remaking{Within: v.cfg.RemakeFor, Say: func(letter []byte) bool {
				return v.controls.Load().Send(rank, append([]byte{kindRemake}, letter...))
			}})
		}
	}
}

// remind lets links say what found no room: that they are not made again.
func (v *view) remind() {
	for r := range members(v.roster.far()) {
		if l := v.peers[r].link.Load(); l != nil {
			l.Remind()
		}
	}
}

var errOut = errors.New("the rank is no member any more")

// post empties the council's outbox. A letter that finds no room is not sent:
// all of them are said again.
func (v *view) post() {
	controls := v.controls.Load()
	var b [1 + letterBytes]byte
	for i := range v.council.outbox {
		m := &v.council.outbox[i]
		if controls != nil {
			controls.Send(m.to, m.append(append(b[:0], kindLetter)))
		}
	}
	v.council.outbox = v.council.outbox[:0]
}

// learn takes over what the host's page knows already: a near rank may have put
// it there and ended before its letters came. Whether who is missing was taken
// out or has left is all the same to a rank that has not heard of a new set.
func (v *view) learn() {
	page, c := v.near.Members().Load(), v.council
	if !v.concerns(epochOf(page)) {
		return
	}
	missing := c.word() &^ page
	if missing>>c.self&1 == 1 {
		c.leave() // and tell, as it would itself in a moment
	}
	c.left |= missing
}

// publish takes what is agreed on over into the host's page.
func (v *view) publish() (changed bool) {
	page, word := v.near.Members(), v.council.word()
	for {
		old := page.Load()
		if !v.concerns(epochOf(old)) {
			return changed
		}
		next := old &^ (ranksMask &^ word)
		if next == old {
			return changed
		}
		if page.CompareAndSwap(old, next) {
			changed = true
		}
	}
}

// concerns reports whether an epoch is the one that this meeting has begun:
// the first one after those that its ranks come from.
func (v *view) concerns(epoch uint16) bool {
	if !v.installed && (!v.roster.survivors || int16(epoch-v.roster.epoch) > 0) && v.live.Load() {
		v.installed, v.epoch = true, epoch
	}
	return v.installed && epoch == v.epoch
}

func (v *view) ringAll() {
	for r := range members(v.roster.near) {
		v.near.Wake(r)
	}
}

// leave tells everybody that this rank has taken itself out.
func (v *view) leave() { v.act(func(c *council, _ time.Time) { c.leave() }) }

// ask wants victims out of a word and reports whether that has happened: not
// if the word was another one already.
func (v *view) ask(old, victims uint64) (done bool) {
	page := v.near.Members()
	v.act(func(c *council, now time.Time) {
		if page.Load() == old && v.concerns(epochOf(old)) {
			c.ask(now, old&ranksMask, victims)
			done = true
		}
	})
	return done && page.Load() == old&^victims
}

// tellBeat sends the beat that is due.
func (v *view) tellBeat() { v.beat = v.sendBeat(v.beat[:0]) }

// sendBeat sends everybody the words, the times, and the council's state. It
// appends what it sends to b. Nobody else reads words and sends them meanwhile:
// older ones would arrive behind newer ones.
func (v *view) sendBeat(b []byte) []byte {
	controls := v.controls.Load()
	if controls == nil {
		return b
	}
	v.beating.Lock()
	defer v.beating.Unlock()
	v.mu.Lock()
	state := v.council.letter(kindState)
	v.mu.Unlock()
	b = append(b, kindBeat, byte(len(v.cfg.Words)+len(v.cfg.Moments)))
	b = binary.LittleEndian.AppendUint64(b, uint64(time.Now().UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, uint64(v.cfg.Clock()))
	own := v.near.Control(v.roster.self)
	for _, words := range [2][]int64{v.cfg.Words, v.cfg.Moments} {
		for _, off := range words {
			b = binary.LittleEndian.AppendUint64(b, own.Word(off).Load())
		}
	}
	b = state.append(b)
	for r := range members(controls.Ranks()) {
		controls.Send(r, b)
	}
	return b
}

// beatHead is what lies before a beat's words, behind its kind: their number,
// the wall clock and Clock.
const beatHead = 1 + 8 + 8

// takeWords copies a far rank's words into its page here, and returns the
// letter behind them.
func (v *view) takeWords(rank int, m []byte) (rest []byte) {
	le := binary.LittleEndian
	n := len(v.cfg.Words) + len(v.cfg.Moments)
	if len(m) < beatHead || int(m[0]) != n || len(m) < beatHead+8*n {
		return nil
	}
	v.sights[rank].beat(int64(le.Uint64(m[1:])) - time.Now().UnixNano())
	shift := uint64(v.cfg.Clock()) - le.Uint64(m[9:]) // from the rank's clock to ours
	words, rest := m[beatHead:beatHead+8*n], m[beatHead+8*n:]
	p := v.peers[rank]
	if p == nil || !v.live.Load() {
		return rest
	}
	for i, off := range v.cfg.Words {
		p.control.Word(off).Store(le.Uint64(words[8*i:]))
	}
	for i, off := range v.cfg.Moments {
		at := le.Uint64(words[8*(len(v.cfg.Words)+i):])
		if at != 0 {
			at += shift
		}
		p.control.Word(off).Store(at)
	}
	v.near.Wake(v.roster.self)
	return rest
}
