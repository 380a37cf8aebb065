package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// TestSchedulesOfTwoHosts is TestSchedules with the ranks on two hosts: between
// these messages go, which arrive late, and not all of them when their sender is
// killed. Each rank has an actor more, which takes messages while it computes.
func TestSchedulesOfTwoHosts(t *testing.T) {
	playSchedules(t, newRemoteScene, max(1, numSchedules(t)/3))
}

// newRemoteScene is newScene on two hosts.
func newRemoteScene(seed uint64, stats *playStats) *scene {
	sc, rng := newScene(seed, stats), rand.New(rand.NewPCG(seed, 4))
	sc.hosts = make([]int, sc.shape.ranks)
	for r := 1; r < len(sc.hosts); r++ {
		sc.hosts[r] = rng.IntN(2)
	}
	sc.hosts[len(sc.hosts)-1] = 1
	sc.longest, sc.underWay = 320+int64(rng.IntN(4))*64, 2+rng.IntN(3)
	return sc
}

// connect gives every incarnation in a view mail to those on the other host.
func (sc *scene) connect(view []*incarnation) {
	if sc.hosts == nil {
		return
	}
	for _, in := range view {
		if in != nil {
			d := in.actor.dom
			d.remote = &remoteView{d: d, out: make([]*mail, len(view)), in: make([]*mail, len(view))}
		}
	}
	for a, from := range view {
		for b, to := range view {
			if from == nil || to == nil || sc.hosts[a] == sc.hosts[b] {
				continue
			}
			m := &mail{st: sc.st, to: to, slots: make([]posted, sc.underWay)}
			from.actor.dom.remote.put(from.actor.dom.remote.out, b, m)
			to.actor.dom.remote.put(to.actor.dom.remote.in, a, m)
		}
	}
}

// mail is what one incarnation sends to another one in one epoch.
type mail struct {
	st         *stage
	to         *incarnation
	slots      []posted // a ring
	first, num int
	last       time.Duration // when the newest is seen
}

type posted struct {
	buf  []byte
	n    int64
	seen time.Duration
}

func (m *mail) at(i int) *posted { return &m.slots[(m.first+i)%len(m.slots)] }

// delay is how long a message is under way. Where only one rank may be lost,
// the delay must make no other rank late.
func (m *mail) delay() time.Duration {
	switch m.st.rng.IntN(4) {
	case 0:
		return time.Duration(m.st.rng.Int64N(int64(pollInterval)))
	case 1:
		return time.Duration(m.st.rng.Int64N(int64(pollInterval) / 16))
	}
	return 0
}

// lose takes along some of what has not arrived.
func (m *mail) lose() {
	unseen := 0
	for i := range m.num {
		if m.at(i).seen > m.st.now {
			unseen++
		}
	}
	m.num -= m.st.rng.IntN(unseen + 1)
}

// remoteView implements domain.Remote: the mail of one rank in one epoch.
type remoteView struct {
	d       *playedDomain
	ranks   rankset.Set
	out, in []*mail
}

var _ domain.Remote = (*remoteView)(nil)

func (f *remoteView) put(list []*mail, r int, m *mail) {
	list[r] = m
	f.ranks = f.ranks.With(r)
}

func (f *remoteView) Ranks() rankset.Set     { return f.ranks }
func (f *remoteView) MaxMessageBytes() int64 { return f.d.inc.actor.scene.longest }
func (f *remoteView) WordAge() time.Duration { return 0 }

func (f *remoteView) Reserve(rank int, n int64) ([]byte, error) {
	f.d.st.yield(atReserve)
	m := f.out[rank]
	switch {
	case m.to.lost:
		return nil, errLost
	case m.num == len(m.slots):
		return nil, transport.ErrWouldBlock
	}
	p := m.at(m.num)
	if int64(len(p.buf)) < n {
		p.buf = make([]byte, n)
	}
	return p.buf[:n:n], nil
}

func (f *remoteView) Post(rank int, n int64) error {
	f.d.st.yield(atPost)
	m, st := f.out[rank], f.d.st
	p := m.at(m.num)
	m.last = max(m.last, st.now+m.delay())
	p.n, p.seen = n, m.last
	m.num++
	st.events = append(st.events, event{p.seen, m.to.ring})
	return nil
}

func (f *remoteView) Next(rank int) []byte {
	m := f.in[rank]
	if m.num == 0 || m.at(0).seen > f.d.st.now {
		return nil
	}
	f.d.st.yield(atNext)
	return m.at(0).buf[:m.at(0).n]
}

func (f *remoteView) Release(rank int) {
	f.d.st.yield(atRelease)
	m := f.in[rank]
	m.first, m.num = (m.first+1)%len(m.slots), m.num-1
	if from := f.d.view[rank]; from != nil {
		from.ring()
	}
}

func (f *remoteView) Untaken() (ranks rankset.Set) {
	f.d.st.yield(atUntaken)
	for r, m := range f.out {
		if m != nil && m.num > 0 && !m.to.lost {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

func (f *remoteView) Memory(n int64) (domain.Segment, error) {
	_, s, err := inproc.New(1, 8)[0].AddSlab(n)
	return &shadowSlab{s, f.d.st}, err
}

// shadowSlab is a rank's own memory that stands for a peer's slab.
type shadowSlab struct {
	domain.Segment
	st *stage
}

func (m *shadowSlab) Word(off int64) *atomic.Uint64 {
	m.st.yield(slabPoint(off) + 1)
	return m.Segment.Word(off)
}

func (m *shadowSlab) Bytes(off, n int64) []byte {
	m.st.yield(atBytes + 1)
	return m.Segment.Bytes(off, n)
}

// remotePage is a remote rank's control page: what messages tell is the looker's own,
// what beats would carry is the rank's.
type remotePage struct {
	domain.Segment
	received *segment
}

func (p *remotePage) Word(off int64) *atomic.Uint64 {
	if off < layout.WaitsFor() {
		return p.received.Word(off)
	}
	return p.Segment.Word(off)
}

// page is that of a remote incarnation.
func (d *playedDomain) page(of *incarnation) domain.Segment {
	if d.pages == nil {
		d.pages = map[*incarnation]*remotePage{}
	}
	if d.pages[of] == nil {
		d.pages[of] = &remotePage{of.control, newControl(of)}
	}
	return d.pages[of]
}

// isRemote reports whether a rank of the view is on the other host.
func (d *playedDomain) isRemote(rank int) bool { return d.remote != nil && d.remote.ranks.Has(rank) }

// newBuffer makes a buffer; an actor takes its messages.
func (sc *scene) newBuffer(a *actor, cfg ep.Config) (*cpu.Buffer, error) {
	kern := stepping{kernels.NewReference(), sc.st}
	if sc.hosts == nil {
		return cpu.New(a.dom, kern, cfg)
	}
	return cpu.NewWithoutPump(a.dom, kern, cfg)
}

// addPump adds the actor that does what ep's goroutine would do.
func (sc *scene) addPump(a *actor) {
	if sc.hosts == nil {
		return
	}
	p := &actor{scene: sc, rank: a.rank, inc: a.inc, dom: a.dom, buf: a.buf, name: a.name + " pump", main: a}
	a.inc.pump = p
	sc.st.spawn(p, p.pumpAll)
}

// pumpSleep is that of ep.
const pumpSleep = 20 * time.Millisecond

// pumpAll has the buffer's lock only while pumping is set: an actor that has the
// turn must not wait for a lock.
func (a *actor) pumpAll() {
	for cpu.IsOpen(a.buf) {
		ticket := a.dom.PrepareSleep()
		a.wants = true
		a.st.pass(a)
		a.wants, a.pumping = false, true
		cpu.Pump(a.buf)
		a.pumping = false
		a.dom.Sleep(ticket, pumpSleep)
	}
}

// able reports whether an actor and its pump may go on beside each other.
func (a *actor) able() bool {
	m := a.main
	if m == nil {
		return a.inc.pump == nil || !a.inc.pump.pumping
	}
	stands := m.state == dead || m.state == frozen && m.until > a.st.now
	return !stands && (!a.wants || cpu.IsUnlocked(a.buf))
}

// wakes is when a sleeping or frozen actor can go on; negative: never.
func (a *actor) wakes() time.Duration {
	switch m := a.main; {
	case m == nil:
		return a.until
	case m.state == dead:
		return -1
	case m.state == frozen:
		return max(a.until, m.until)
	}
	return a.until
}

// struckAs is the actor that faults strike.
func (a *actor) struckAs() *actor {
	if a.main != nil {
		return a.main
	}
	return a
}

func (sc *scene) String() string {
	return fmt.Sprintf("%d ranks on hosts %v, %d slots, one fault %v", sc.shape.ranks, sc.hosts, sc.slots, sc.single)
}

// TestScheduleAgain: a seed is a schedule, to the last step, on two hosts too.
func TestScheduleAgain(t *testing.T) {
	for seed := range uint64(20) {
		var steps [2]int
		var history [2]string
		for i := range steps {
			sc := newRemoteScene(seed, new(playStats))
			require.NoError(t, sc.play())
			steps[i], history[i] = sc.st.steps, sc.st.history()
		}
		require.Equal(t, steps[0], steps[1])
		require.Equal(t, history[0], history[1])
	}
}
