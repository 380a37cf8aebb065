package multihost

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

// world plays the agreements of a group on a clock of its own: streams between
// all pairs that keep their order, take time, and stand still while they are
// cut; ranks that are killed, frozen, or leave.
type world struct {
	seed    uint64
	rng     *rand.Rand
	now     time.Time
	ranks   []*player
	cut     map[[2]int]bool
	pipes   map[[2]int][]parcel
	agreed  []uint64 // every set that any rank has gone on to
	history []string
	quiet   bool // nothing new goes wrong
}

type player struct {
	*agreement
	dead   bool
	frozen time.Time // until when
	ticked time.Time
	beaten time.Time
	waits  rankset.Set
	seen   rankset.Set
	blames rankset.Set // what its failure detector says, while it holds
}

type parcel struct {
	at  time.Time
	m   agreementMessage
	eof bool
}

var testRules = rules{bound: 100 * time.Millisecond, retry: 15 * time.Millisecond, lapse: 60 * time.Millisecond}

func newWorld(seed uint64, ranks int) *world {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1000, 0),
		cut: map[[2]int]bool{}, pipes: map[[2]int][]parcel{},
	}
	r := testRules
	for i := range ranks {
		w.ranks = append(w.ranks, &player{agreement: newAgreement(i, rankset.Upto(ranks), r, w.now), ticked: w.now, waits: rankset.Upto(ranks)})
	}
	return w
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf("%v: ", w.now.Sub(time.Unix(1000, 0)))+fmt.Sprintf(format, args...))
}

func (w *world) send(from, to int, p parcel) {
	k := [2]int{from, to}
	p.at = w.now.Add(time.Duration(w.rng.IntN(3000)) * time.Microsecond)
	w.pipes[k] = append(w.pipes[k], p)
}

// step plays one millisecond.
func (w *world) step() {
	w.now = w.now.Add(time.Millisecond)
	for _, i := range w.rng.Perm(len(w.ranks)) {
		p := w.ranks[i]
		if p.dead || w.now.Before(p.frozen) {
			continue
		}
		for _, from := range w.rng.Perm(len(w.ranks)) {
			w.deliver(from, i)
		}
		w.live(p)
		w.flush(p)
	}
}

func (w *world) deliver(from, to int) {
	k, p := [2]int{from, to}, w.ranks[to]
	for len(w.pipes[k]) > 0 && !w.cut[k] && !w.now.Before(w.pipes[k][0].at) {
		parcel := w.pipes[k][0]
		w.pipes[k] = w.pipes[k][1:]
		if parcel.eof {
			p.ended(w.now, from)
		} else {
			p.receive(w.now, &parcel.m)
		}
		w.flush(p)
	}
}

// live is what a rank does by the clock.
func (w *world) live(p *player) {
	if gap := w.now.Sub(p.ticked); gap >= tickEvery {
		if gap > 4*tickEvery {
			p.excuse(w.now, gap)
		}
		p.tick(w.now)
		p.ticked = w.now
		w.application(p)
	}
	if w.now.Sub(p.beaten) >= beatEvery {
		p.beaten = w.now
		p.notifyAll()
	}
}

// application asks for what core/ep/cpu would: the ranks that are dying or unresponsive and
// are waited for, one at a time; and those that the failure detector has blamed.
func (w *world) application(p *player) {
	word := p.word()
	if ended := p.waits.And(word).And(p.gone.Or(p.unresponsive)).Without(p.self); !ended.Empty() {
		p.ask(w.now, word, rankset.Of(ended.Min()))
	}
	if !p.blames.Empty() {
		p.ask(w.now, p.seen, p.blames)
		if p.word() != p.seen {
			p.blames = rankset.Set{}
		}
	}
}

func (w *world) flush(p *player) {
	for _, m := range p.outbox {
		if _, err := parseAgreementMessage(m.append(nil)); err != nil {
			panic(err)
		}
		w.send(p.self, m.to, parcel{m: m})
	}
	p.outbox = p.outbox[:0]
	if len(w.agreed) == 0 || rankset.FromWord(w.agreed[len(w.agreed)-1]) != p.set {
		w.agreed = append(w.agreed, p.set.Word())
	}
}

func (w *world) kill(i int) {
	p := w.ranks[i]
	if p.dead {
		return
	}
	w.note("rank %d is killed", i)
	p.dead = true
	for to := range w.ranks {
		if to != i {
			k := [2]int{i, to} // the last things that it wrote may not have left
			w.pipes[k] = w.pipes[k][:len(w.pipes[k])-w.rng.IntN(min(len(w.pipes[k]), 5)+1)]
			w.send(i, to, parcel{eof: true})
		}
	}
}

func (w *world) setCut(a, b rankset.Set, cut bool) {
	for i := range w.ranks {
		for j := range w.ranks {
			if a.Has(i) && b.Has(j) {
				w.cut[[2]int{i, j}], w.cut[[2]int{j, i}] = cut, cut
			}
		}
	}
}

// misfortune is one random fault.
func (w *world) misfortune(cuts bool) {
	n := len(w.ranks)
	i, j := w.rng.IntN(n), w.rng.IntN(n)
	all := rankset.Upto(n)
	switch k := w.rng.IntN(10); {
	case k < 2:
		w.kill(i)
	case k < 3:
		w.ranks[i].frozen = w.now.Add(time.Duration(w.rng.IntN(300)) * time.Millisecond)
		w.note("rank %d is frozen", i)
	case k < 4 && !w.ranks[i].dead:
		w.note("rank %d leaves", i)
		w.ranks[i].leave()
		w.flush(w.ranks[i])
	case k < 5 && i != j:
		w.note("rank %d blames %d", i, j)
		w.ranks[i].seen, w.ranks[i].blames = w.ranks[i].word(), rankset.Of(j)
	case k < 8 && cuts:
		side := rankset.FromWord(w.rng.Uint64()).And(all)
		w.note("cut: %v", side)
		w.setCut(side, all.Minus(side), true)
	case k < 9 && cuts && i != j:
		w.note("cut: %d from %d", i, j)
		w.setCut(rankset.Of(i), rankset.Of(j), true)
	default:
		w.note("all cuts are repaired")
		w.setCut(all, all, false)
	}
}

func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.step()
	}
}

// survivors are the ranks that believe that they are in.
func (w *world) survivors() (ranks rankset.Set) {
	for i, p := range w.ranks {
		if !p.dead && p.isIn() {
			ranks = ranks.With(i)
		}
	}
	return ranks
}

// broken says which promise does not hold; "" if all do.
func (w *world) broken() string {
	for i, a := range w.agreed {
		for _, b := range w.agreed[i+1:] {
			if both := a & b; both != a && both != b {
				return fmt.Sprintf("sets %b and %b were both agreed on", a, b)
			}
		}
	}
	if !w.quiet {
		return ""
	}
	alive := w.survivors()
	for i, p := range w.ranks {
		if alive.Has(i) && p.word() != alive {
			return fmt.Sprintf("rank %d goes on with %v, the survivors are %v", i, p.word(), alive)
		}
	}
	return ""
}

// chaos plays one seed and says what broke.
func chaos(seed uint64) (w *world, broken string) {
	rng := rand.New(rand.NewPCG(seed, 2))
	w = newWorld(seed, 2+rng.IntN(5))
	for range 1 + rng.IntN(6) {
		w.misfortune(seed%4 != 0)
		w.run(time.Duration(rng.IntN(250)) * time.Millisecond)
		if b := w.broken(); b != "" {
			return w, b
		}
	}
	if rng.IntN(3) == 0 {
		w.setCut(rankset.Upto(rankset.MaxRanks), rankset.Upto(rankset.MaxRanks), false)
	}
	w.run(4 * time.Second)
	w.quiet = true
	return w, w.broken()
}

func seeds(t testing.TB, n uint64) (from, to uint64) {
	if s := os.Getenv("MOEWIRE_TEST_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		return seed, seed + 1
	}
	if testing.Short() || raceEnabled {
		n /= 10
	}
	return 0, n
}
