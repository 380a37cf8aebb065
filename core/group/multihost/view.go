package multihost

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/link"
)

// view is what one rendezvous has made of a group with remote ranks: its
// connections, its links, and its agreement. It implements link.Handler.
type view struct {
	cfg          *Config
	local        domain.Domain
	participants *participants
	controls     atomic.Pointer[link.Controls]
	peers        [rankset.MaxRanks]*peer // remote ranks
	paths        *pathTable
	carriers     *carriers

	events       chan event  // to the goroutine that holds the rendezvous
	rendezvous   atomic.Bool // a rendezvous reads the events
	live         atomic.Bool // it is the domain's
	born         time.Time
	beaten       atomic.Int64 // the latest Tick, after born
	totals       *totals
	controlStats [rankset.MaxRanks]controlStats
	ended        rankset.Set                   // of watchLocal: processes of this host
	notified     [rankset.MaxRanks]rankset.Set // of these, by remote rank

	beating sync.Mutex // held from reading the words until they are queued: mu is taken under it

	mu           sync.Mutex // guards what follows
	agreement    *agreement
	installed    bool
	epoch        membership.Epoch // once installed
	ticked       time.Time
	beat         []byte
	unresponsive rankset.Set // counted already
	reasons      [rankset.MaxRanks]reason
}

// event is one for a rendezvous.
type event struct {
	rank int
	kind byte
	text []byte
	how  link.Ending
	err  error
}

// Kinds of control messages, in the first byte; and of events.
const (
	kindBeat = iota + 1
	kindAgreement
	kindCarriers // names, by preference, separated by commas
	kindOffer    // nothing: none could be made
	kindLinked   // the offer was taken
	kindTried    // nothing: bytes arrive; else why not, in words
	kindReady
	kindAbort     // a reason
	kindReconnect // link.Link's, about itself
	kindEnded     // ranks of the sender's host that have an ended process
	kindWhy       // why the sender wants a rank out
	eventUp
	eventEnded
)

// maxEvents is more than a rendezvous has.
const maxEvents = 8 * rankset.MaxRanks

func newView(cfg *Config, local domain.Domain, r *participants) *view {
	now := time.Now()
	v := &view{
		cfg: cfg, local: local, participants: r, totals: &totals{}, events: make(chan event, maxEvents), born: now, ticked: now,
		agreement: newAgreement(r.self, r.present, rules{
			bound: cfg.Bound,
			retry: min(max(cfg.Bound/20, 2*time.Millisecond), 50*time.Millisecond),
			lapse: max(cfg.Bound/2, 4*cfg.Heartbeat),
		}, now),
	}
	v.rendezvous.Store(true)
	return v
}

// sendEvent tells the rendezvous, which reads as long as it lasts.
func (v *view) sendEvent(n event) {
	if !v.rendezvous.Load() {
		return
	}
	select {
	case v.events <- n:
	default: // more than any rank would say
	}
}

// Up is part of link.Handler.
func (v *view) Up(rank int) { v.sendEvent(event{rank: rank, kind: eventUp}) }

// Ended is part of link.Handler.
func (v *view) Ended(rank int, how link.Ending, err error) {
	v.sendEvent(event{rank: rank, kind: eventEnded, how: how, err: err})
	v.countEnd(rank, how)
	if p := v.peers[rank]; p != nil && how == link.EndExited {
		p.die(v.participants.infos[rank].Addr, err)
	}
	if p := v.peers[rank]; p != nil {
		if l := p.link.Load(); l != nil {
			l.StopReconnecting(err)
		}
	}
	if how != link.EndBroken { // else silence is all that is known
		v.act(func(c *agreement, now time.Time) { c.ended(now, rank) })
	}
}

// Received is part of link.Handler.
func (v *view) Received(rank int, m []byte) {
	if len(m) == 0 {
		return
	}
	v.controlStats[rank].observe()
	kind, m := m[0], m[1:]
	switch {
	case kind == kindBeat:
		m = v.takeWords(rank, m)
		fallthrough
	case kind == kindAgreement:
		if l, err := parseAgreementMessage(m); err == nil {
			l.from = rank
			v.act(func(c *agreement, now time.Time) { c.receive(now, &l) })
		}
	case kind == kindReconnect:
		if p := v.peers[rank]; p != nil {
			if l := p.link.Load(); l != nil {
				l.Deliver(m)
			}
		}
	case kind == kindEnded:
		v.takeEnded(rank, m)
	case kind == kindWhy:
		v.takeWhy(rank, m)
	case kind < eventUp:
		v.sendEvent(event{rank: rank, kind: kind, text: bytes.Clone(m)})
	}
}

// Tick is part of link.Handler.
func (v *view) Tick() {
	v.act(func(c *agreement, now time.Time) {
		if gap := now.Sub(v.ticked); gap > 4*v.cfg.Heartbeat {
			c.excuse(now, gap) // this process was not running
		}
		v.ticked = now
		c.tick(now)
	})
	v.watchLocal()
	v.sendDueBeat()
	v.remind()
	v.beaten.Store(int64(time.Since(v.born)))
	v.report()
}

// Crashed is part of link.Handler. Without ticks no change of the group would ever come,
// nor would this rank notice that it cannot: waits for remote ranks would have no end. So
// this rank leaves, on its host at once; others see its connections end. The agreement is
// not asked: it may be what has crashed.
func (v *view) Crashed(error) {
	page, self := v.local.Members(), v.participants.self
	for old := page.Load(); v.isOf(epochOf(old)) && ranksOf(old).Has(self); old = page.Load() {
		if page.CompareAndSwap(old, uint64(membership.Members(old).Without(rankset.Of(self)))) {
			v.ringAll()
			return
		}
	}
}

// wordAge is how old the copies of remote ranks' words may be. They come on the
// goroutine that ticks: where that gets no processor they are older.
func (v *view) wordAge() time.Duration {
	return v.cfg.Heartbeat + time.Since(v.born) - time.Duration(v.beaten.Load())
}

// act lets the agreement do something and carries out what comes of it. Agreement messages
// are queued under the lock, which keeps their order.
func (v *view) act(f func(c *agreement, now time.Time)) {
	suspects, out, changed := v.decide(f)
	for r := range v.participants.remote().All() {
		if s := suspects.Has(r); v.peers[r].suspect.Swap(s) != s {
			changed = changed || s
		}
	}
	v.revoke(out)
	if changed {
		v.ringAll()
	}
}

// decide is the part of act under the lock, which an agreement that panics leaves
// open.
func (v *view) decide(f func(c *agreement, now time.Time)) (suspects, out rankset.Set, changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.agreement
	v.learn()
	f(c, time.Now())
	v.post()
	v.count()
	v.dateReasons()
	return c.gone.Or(c.unresponsive), v.participants.present.Minus(c.set), v.publish()
}

// revoke ends the links to the ranks that were taken out. This rank reads nothing that
// they still send, which may land in the rings of these links until their endpoints are
// retired. What was taken from them before stays.
func (v *view) revoke(out rankset.Set) {
	if !v.live.Load() {
		return
	}
	for r := range out.And(v.participants.remote()).All() {
		if l := v.peers[r].link.Load(); l.Err() == nil {
			l.Break(errOut)
		}
	}
}

var errOut = errors.New("the rank is no member any more")

// post empties the agreement's outbox. An agreement message that finds no room is not sent:
// all of them are said again.
func (v *view) post() {
	controls := v.controls.Load()
	var b [1 + agreementMessageBytes]byte
	for i := range v.agreement.outbox {
		m := &v.agreement.outbox[i]
		if controls != nil {
			controls.Send(m.to, m.append(append(b[:0], kindAgreement)))
		}
	}
	v.agreement.outbox = v.agreement.outbox[:0]
}

// learn takes over what the host's page knows already: a local rank may have put it there
// and ended before its agreement messages came. For a rank that has not heard of a new
// set it makes no difference whether a missing rank was taken out or has left.
func (v *view) learn() {
	page, c := v.local.Members().Load(), v.agreement
	if !v.concerns(epochOf(page)) {
		return
	}
	missing := c.word().Minus(ranksOf(page))
	if missing.Has(c.self) {
		c.leave() // and tell, as it would itself in a moment
	}
	c.left = c.left.Or(missing)
}

// publish takes what is agreed on over into the host's page.
func (v *view) publish() (changed bool) {
	page, word := v.local.Members(), v.agreement.word()
	for {
		old := page.Load()
		if !v.concerns(epochOf(old)) {
			return changed
		}
		next := uint64(membership.New(epochOf(old), ranksOf(old).And(word)))
		if next == old {
			return changed
		}
		if page.CompareAndSwap(old, next) {
			changed = true
		}
	}
}

// concerns reports whether an epoch is the one that this rendezvous has begun:
// the first one after those that its ranks come from.
func (v *view) concerns(epoch membership.Epoch) bool {
	if !v.installed && (!v.participants.survivors || epoch.IsAfter(v.participants.epoch)) && v.live.Load() {
		v.installed, v.epoch = true, epoch
	}
	return v.installed && epoch == v.epoch
}

func (v *view) ringAll() {
	for r := range v.participants.local.All() {
		v.local.Wake(r)
	}
}

// leave tells every rank that this rank has taken itself out.
func (v *view) leave() { v.act(func(c *agreement, _ time.Time) { c.leave() }) }

// ask wants ranks out of a word and reports whether that has happened: not
// if the word was another one already.
func (v *view) ask(old uint64, removals rankset.Set) (done bool) {
	page := v.local.Members()
	v.act(func(c *agreement, now time.Time) {
		if page.Load() == old && v.concerns(epochOf(old)) {
			c.ask(now, ranksOf(old), removals)
			done = true
		}
	})
	return done && page.Load() == uint64(membership.Members(old).Without(removals))
}

// sendDueBeat sends the beat that is due.
func (v *view) sendDueBeat() { v.beat = v.sendBeat(v.beat[:0]) }

// sendBeat sends every rank the words, the times, and the agreement's state. It appends
// what it sends to b. No other goroutine reads words and sends them meanwhile: older ones
// would arrive behind newer ones.
func (v *view) sendBeat(b []byte) []byte {
	controls := v.controls.Load()
	if controls == nil {
		return b
	}
	v.beating.Lock()
	defer v.beating.Unlock()
	v.mu.Lock()
	state := v.agreement.message(kindState)
	v.mu.Unlock()
	b = append(b, kindBeat, byte(len(v.cfg.Words)+len(v.cfg.Moments)))
	b = binary.LittleEndian.AppendUint64(b, uint64(time.Now().UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, uint64(v.cfg.Clock()))
	own := v.local.Control(v.participants.self)
	for _, words := range [2][]int64{v.cfg.Words, v.cfg.Moments} {
		for _, off := range words {
			b = binary.LittleEndian.AppendUint64(b, own.Word(off).Load())
		}
	}
	b = state.append(b)
	for r := range controls.Ranks().All() {
		controls.Send(r, b)
	}
	return b
}

// beatHead is what lies before a beat's words, behind its kind: their number,
// the wall clock and Clock.
const beatHead = 1 + 8 + 8

// takeWords copies a remote rank's words into its page here, and returns the
// message behind them.
func (v *view) takeWords(rank int, m []byte) (rest []byte) {
	le := binary.LittleEndian
	n := len(v.cfg.Words) + len(v.cfg.Moments)
	if len(m) < beatHead || int(m[0]) != n || len(m) < beatHead+8*n {
		return nil
	}
	v.controlStats[rank].beat(int64(le.Uint64(m[1:])) - time.Now().UnixNano())
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
	v.local.Wake(v.participants.self)
	return rest
}
