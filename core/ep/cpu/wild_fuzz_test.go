package cpu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/telemetry"
)

// wildCase overwrites one word under three ranks that run.
type wildCase struct {
	seed uint64
	r    *rand.Rand
	w    *wildWorld
	s    shape
	// What may be overwritten.
	classes []wildClass
	flat    bool // the rounds are
	target  int
	peer    int // of the link, where there is one
	delay   time.Duration
	more    int // words of the same memory that are overwritten afterwards, wildPause apart

	found, lost int // violations found, and ranks lost
}

// blow is a word that was overwritten.
type blow struct {
	word     string
	old, new uint64
	// The ranks that it may cost their membership, one bit each. All others go on, and
	// miss no rank but those.
	costs uint64
	holes bool // counters may be too high
	// A message may be lost. Then the failure detector takes a rank out of the circle of waits,
	// which may be any. And these ranks may read other parameters than were sent.
	late     bool
	disagree uint64
}

func (b blow) String() string {
	return fmt.Sprintf("%s from %#x to %#x, which may cost %b", b.word, b.old, b.new, b.costs)
}

// wildClass is a kind of word: where one of it lies, and which ranks it may cost their
// membership. False: this value is not for a test, since its writer could store it now.
type wildClass struct {
	name    string
	place   func(c *wildCase) (f wildMemory, off int64, word string)
	applies func(c *wildCase, b *blow, off int64) bool
}

// wildClasses are all words that more than one process can write.
var wildClasses = []wildClass{
	{"counter", (*wildCase).inCounters, func(c *wildCase, b *blow, _ int64) bool { b.holes = true; return true }},
	{"layout", (*wildCase).inLayout, nil},
	{"params", (*wildCase).inParams, nil},
	{"arrive", (*wildCase).inArrive, (*wildCase).sealed},
	{"counted", (*wildCase).inCounted, (*wildCase).sealed},
	{"done", (*wildCase).inDone, (*wildCase).stamped},
	{"order", (*wildCase).inRowOrder, nil},
	{"open", (*wildCase).inOpen, nil},
	{"y_ready", (*wildCase).inYReady, (*wildCase).published},
	{"advice", (*wildCase).inAdvice, nil},
	{"table", (*wildCase).inTable, nil},
	{"header", (*wildCase).inHeader, nil},
	{"records", (*wildCase).inRecords, nil},
	{"telemetry", (*wildCase).inTelemetry, nil},
	{"members", (*wildCase).inMembers, (*wildCase).members},
}

func (c *wildCase) inSlab(name string, off int64) (wildMemory, int64, string) {
	slot := c.r.IntN(wildSlots)
	return c.w.memory[c.target], c.w.slabAt(c.target, slot) + off, fmt.Sprintf("%s of slot %d of rank %d", name, slot, c.target)
}

func (c *wildCase) inControl(name string, off int64) (wildMemory, int64, string) {
	return c.w.memory[c.target], wildControl + off, fmt.Sprintf("%s of rank %d", name, c.target)
}

// layout is where the words of an operation lie.
func (c *wildCase) layout() layout.Slab {
	s := layout.Shape{
		MaxTokens: int64(c.s.maxTokens), Hidden: int64(c.s.hidden), NumExperts: int64(c.s.experts), NumRanks: int64(c.s.ranks),
		RowType: c.s.rowType(), Flat: c.flat,
	}
	if c.flat {
		s.Columns[layout.ColumnTopkIdx], s.Columns[layout.ColumnTopkWeights] = 8*int64(c.s.topk), 4*int64(c.s.topk)
	}
	lay, err := layout.Of(s)
	if err != nil {
		panic(err) // ranks use this shape
	}
	return lay
}

func (c *wildCase) inCounters() (wildMemory, int64, string) {
	l := c.r.IntN(int(c.layout().LocalExperts))
	return c.inSlab(fmt.Sprintf("counter[%d]", l), layout.Counter(l))
}

func (c *wildCase) inLayout() (wildMemory, int64, string) {
	lay := c.layout()
	l, s := c.r.IntN(int(lay.LocalExperts)), c.r.IntN(c.s.ranks)
	return c.inSlab(fmt.Sprintf("layout[%d][%d]", l, s), lay.Layout(int64(l), int64(s)))
}

func (c *wildCase) inParams() (wildMemory, int64, string) {
	s, i := c.r.IntN(c.s.ranks), c.r.Int64N(7)
	return c.inSlab(fmt.Sprintf("params[%d], word %d", s, i), layout.Params(s)+8*i)
}

func (c *wildCase) inArrive() (wildMemory, int64, string) {
	s := c.r.IntN(c.s.ranks)
	return c.inSlab(fmt.Sprintf("arrive[%d]", s), layout.Arrive(s))
}

func (c *wildCase) inCounted() (wildMemory, int64, string) {
	s := c.r.IntN(c.s.ranks)
	return c.inSlab(fmt.Sprintf("counted[%d]", s), layout.Announced(s))
}

func (c *wildCase) inDone() (wildMemory, int64, string) {
	s := c.r.IntN(c.s.ranks)
	return c.inSlab(fmt.Sprintf("done[%d]", s), layout.Done(s))
}

func (c *wildCase) inRowOrder() (wildMemory, int64, string) {
	if c.r.IntN(2) == 0 {
		return c.inSlab("order", layout.RowOrder())
	}
	return c.inSlab("the ranks of order", layout.RowOrderMembers())
}

func (c *wildCase) inOpen() (wildMemory, int64, string) {
	slot := c.r.IntN(wildSlots)
	return c.inControl(fmt.Sprintf("open[%d]", slot), layout.Open(slot))
}

func (c *wildCase) inYReady() (wildMemory, int64, string) {
	slot := c.r.IntN(wildSlots)
	return c.inControl(fmt.Sprintf("y_ready[%d]", slot), layout.YReady(slot))
}

func (c *wildCase) inAdvice() (wildMemory, int64, string) {
	at := []int64{layout.WaitsFor(), layout.Since(), layout.Beat(), layout.Quiesced()}[c.r.IntN(4)]
	return c.inControl(fmt.Sprintf("the control word at %d", at), at)
}

func (c *wildCase) inTable() (wildMemory, int64, string) {
	at := int64(8 * c.r.IntN(2*wildSlots+2))
	return c.w.memory[c.target], wildTable + at, fmt.Sprintf("the slab table of rank %d at %d", c.target, at)
}

func (c *wildCase) inHeader() (wildMemory, int64, string) {
	at := []int64{0, wildSleepers, wildHolder, wildHolder + 8}[c.r.IntN(4)]
	return c.w.memory[c.target], at, fmt.Sprintf("the header of rank %d at %d", c.target, at)
}

func (c *wildCase) inRecords() (wildMemory, int64, string) {
	off := 8 * c.r.Int64N(layout.RecordBytes/8)
	if c.r.IntN(2) == 0 { // one that was written
		off = 8<<10 + 8*telemetry.MaxExperts + 8*c.r.Int64N(wildRounds*telemetry.RecordBytes/8)
	}
	return c.inControl(fmt.Sprintf("telemetry at %d", off), layout.Record()+off)
}

// inTelemetry is more often in the header and the totals, which every reader reads.
func (c *wildCase) inTelemetry() (wildMemory, int64, string) {
	word := c.r.Int64N(int64(8<<10) / 8)
	if c.r.IntN(2) == 0 {
		word = c.r.Int64N(32)
	}
	return c.inControl(fmt.Sprintf("telemetry, word %d", word), layout.Record()+8*word)
}

func (c *wildCase) inMembers() (wildMemory, int64, string) { return c.w.members, 0, "the members page" }

// sealed: with an older word its writer seems late. The failure detector decides which of the
// two ranks is lost. A test comes to no older word but 0.
func (c *wildCase) sealed(b *blow, off int64) bool {
	if b.new == 0 {
		b.costs |= 1<<c.s.ranks - 1
	}
	return true
}

// stamped is for words with an operation: a later one that is not too late for its writer is
// not for a test, and an older one makes the writer seem late.
func (c *wildCase) stamped(b *blow, off int64) bool {
	was, is := b.old>>16, b.new>>16
	if is < was {
		b.costs = 1<<c.s.ranks - 1
	}
	return is < was || is > was+2*wildSlots
}

// published: what readers take for outputs, or for the end of an operation, is not for a test.
func (c *wildCase) published(b *blow, off int64) bool {
	was, is := b.old>>16, b.new>>16
	return is < was || is > was+2*wildSlots
}

// members: a rank that loses its bit is out; in another epoch all ranks are out.
func (c *wildCase) members(b *blow, _ int64) bool {
	b.costs = b.old &^ b.new & (1<<c.s.ranks - 1)
	if b.old>>membership.EpochShift != b.new>>membership.EpochShift {
		b.costs = 1<<c.s.ranks - 1
	}
	return true
}

// value draws what a word is overwritten with.
func (c *wildCase) value(old uint64) uint64 {
	switch c.r.IntN(8) {
	case 0:
		return c.r.Uint64()
	case 1:
		return -c.r.Uint64N(1 << 10)
	case 2:
		return 1<<63 | c.r.Uint64N(1<<32)
	case 3:
		return c.r.Uint64N(64)
	case 4:
		return 0
	case 5:
		return old + c.r.Uint64N(9) - 4
	}
	return old ^ 1<<c.r.IntN(64)
}

// strike overwrites a word.
func (c *wildCase) strike() (b blow, struck bool) {
	class := c.classes[c.r.IntN(len(c.classes))]
	if only := os.Getenv("MOEWIRE_TEST_WILD"); only != "" {
		for _, class = range c.classes {
			if class.name == only {
				break
			}
		}
	}
	f, off, word := class.place(c)
	b = blow{word: word, old: load(f, off), costs: 1 << c.target}
	b.new = c.value(b.old)
	if b.new == b.old || (class.applies != nil && !class.applies(c, &b, off)) {
		return b, false
	}
	store(f, off, b.new)
	return b, true
}

const (
	wildRounds = 30
	wildPause  = 300 * time.Microsecond
)

// run plays the rounds, and says what went otherwise than it should.
func (c *wildCase) run() (b blow, err error) {
	defer c.w.close()
	inputsOf := make([][]input, wildRounds)
	for i := range inputsOf {
		inputsOf[i] = inputs(c.r, c.s, routings[c.r.IntN(len(routings))])
	}
	ends := make([]wildOutcome, c.s.ranks)
	var wg sync.WaitGroup
	for rank := range ends {
		wg.Go(func() { ends[rank] = c.play(rank, inputsOf) })
	}
	stop := make(chan struct{})
	reading := c.w.readBeside(stop)
	time.Sleep(c.delay)
	b, struck := c.strike()
	for range c.more {
		time.Sleep(wildPause)
		if again, is := c.strike(); is {
			b, struck = again, true
		}
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(8 * wildTimeout):
		return b, errors.New("a call does not return")
	}
	close(stop)
	if err := <-reading; err != nil {
		return b, err
	}
	if !struck {
		b.costs = 0
	}
	return b, c.checkOutcomes(&b, ends)
}

func (c *wildCase) play(rank int, inputsOf [][]input) (end wildOutcome) {
	for _, ins := range inputsOf {
		lacks, err := c.round(rank, ins)
		end.lacks |= lacks
		switch end.disagreed = errors.Join(end.disagreed, disagreement(err)); {
		case err == nil || disagreement(err) != nil: // goes on, as a caller would
		case errors.Is(err, errWrong):
			end.err = err
		default:
			end.err = err
			return end
		}
	}
	return end
}

// disagreement is an error of ranks that seem to have called with different parameters: it
// costs them the operation.
func disagreement(err error) error {
	if errors.Is(err, ep.ErrMismatch) || errors.Is(err, ep.ErrNotCombined) {
		return err
	}
	return nil
}

func (c *wildCase) round(rank int, ins []input) (lacks uint64, err error) {
	if c.flat {
		return c.w.wildFlatRound(rank, flatShape{shape: c.s}, ins)
	}
	return c.w.wildRound(rank, c.s, ins, true)
}

// checkOutcomes is the oracle: a rank that the word may not cost anything ends well, and misses no rank
// but those that it may cost something.
func (c *wildCase) checkOutcomes(b *blow, ends []wildOutcome) error {
	if c.w.outside.Load() {
		return errors.New("rows were about to be written outside of a slab")
	}
	violations := uint64(0)
	for _, buf := range c.w.bufs {
		violations += buf.Counters().NumViolations + buf.Counters().NumMessagesDropped
	}
	c.found = int(min(violations, 1))
	mayDisagree := false
	for rank, end := range ends {
		if end.err != nil {
			c.lost++
		}
		mayDisagree = mayDisagree || (b.disagree>>rank&1 == 1 && errors.Is(end.disagreed, ep.ErrMismatch))
	}
	for rank, end := range ends {
		if end.disagreed != nil && !mayDisagree {
			return fmt.Errorf("rank %d: %w%s", rank, end.disagreed, c.events())
		}
		if b.costs>>rank&1 == 1 || (b.late && errors.Is(end.err, ep.ErrFenced)) {
			continue
		}
		if end.err != nil {
			return fmt.Errorf("rank %d: %w%s", rank, end.err, c.events())
		}
		if other := end.lacks &^ b.costs; other != 0 && !b.late {
			return fmt.Errorf("rank %d misses %b%s", rank, other, c.events())
		}
	}
	return nil
}

// events are what ranks say of one another.
func (c *wildCase) events() (text string) {
	for rank, buf := range c.w.bufs {
		events, _ := buf.Events(0)
		for _, ev := range events {
			text += fmt.Sprintf("\nrank %d says of rank %d: %s: %s", rank, ev.Rank, ev.Kind, ev.Why)
		}
	}
	return text
}

func newWildCase(t testing.TB, seed uint64) *wildCase {
	r := rand.New(rand.NewPCG(seed, 2))
	c := &wildCase{
		seed: seed, r: r, s: randomShape(r, 3), target: r.IntN(3), classes: wildClasses,
		delay: time.Duration(r.IntN(3000)) * time.Microsecond,
	}
	switch r.IntN(4) {
	case 0:
		c.s.fp8, c.s.hidden = true, castBlock*(1+r.IntN(2))
	case 1:
		c.flat = true
	}
	c.w = newWildWorld(t, 3, ep.Config{NumBytes: 16 << 20, NumSlots: wildSlots, Deterministic: r.IntN(3) == 0})
	return c
}

// TestWildWords overwrites random words under three ranks that run: no crash, no hang, no
// panic. At most the owner of the memory is lost, and the others' results are right.
func TestWildWords(t *testing.T) { playWild(t, newWildCase, 40*time.Second) }

// wildLasts is how long words are overwritten; all is what that is in tier all, where all such tests share a minute.
func wildLasts(t *testing.T, all time.Duration) time.Duration {
	switch {
	case os.Getenv("MOEWIRE_TEST_WILD") != "":
		return 5 * time.Minute // a mutant: the word that shows it may come late
	case testing.Short():
		return 3 * time.Second
	case testenv.Long(t):
		return 5 * time.Minute
	}
	return all
}

func playWild(t *testing.T, newCase func(t testing.TB, seed uint64) *wildCase, all time.Duration) {
	lasts, seed := wildLasts(t, all), testenv.Seed(t)
	fmt.Printf("random words are overwritten from MOEWIRE_TEST_SEED=%d on\n", seed) // a crash has no other log
	n, began, found, lost := uint64(0), time.Now(), 0, 0
	for ; time.Since(began) < lasts; n++ {
		c := newCase(t, seed+n)
		start := time.Now()
		b, err := c.run()
		if d := time.Since(start); d > 2*time.Second {
			t.Logf("seed %d took %v: %v%s", seed+n, d, b, c.events())
		}
		require.NoError(t, err, "MOEWIRE_TEST_SEED=%d begins with it: %v", seed+n, b)
		found, lost = found+c.found, lost+c.lost
	}
	t.Logf("%d words, %d of them found, %d ranks were lost", n, found, lost)
}

// TestMutationsOfWildWords takes one check of a word away at a time. The words that are
// overwritten at random must show it.
func TestMutationsOfWildWords(t *testing.T) {
	var list []testenv.Mutation
	for _, m := range []struct{ name, class, file, from, to string }{
		{"a sum that wraps", "counter", "send.go", "!protocol.Fits(begin, n, capacity)", "begin+n > capacity"},
		{"places of fp8 rows are believed", "counter", "send.go", "!protocol.Fits(begin, n, capacity)", "!s.slab.RowType.IsFP8() && !protocol.Fits(begin, n, capacity)"},
		{"counts of flat rows are believed", "counter", "received.go", "!protocol.Fits(reserved, 0,", "!a.Flat && !protocol.Fits(reserved, 0,"},
		{"rows that no range holds are believed", "layout", "received.go", "sum != reserved && !holes", "false"},
		{"a rank does not look at its own words", "open", "violation.go", "	if b.isMember() {\n\t\tb.checkOwn()\n", "	if b.isMember() {\n"},
		{"parameters are believed", "params", "shared.go", "ok = number == 0 || sealOf(rank, &words, extra) == number>>sealShift", "ok = number < ^uint64(0)"},
		{"arrivals are believed", "arrive", "violation.go", "if !protocol.IsSealed(word, source) || protocol.IsPast(word, n) {", "if false {"},
		{"numbers of experts in messages are believed", "rings", "remote_jobs.go", "n == 0 || n > len(entries) ||", "n == 0 ||"},
		{"readers believe how many experts there are", "telemetry", "../../telemetry/stats.go", "min(a.load(wordExperts), MaxExperts)", "a.load(wordExperts)"},
		{"readers believe records", "records", "../../telemetry/record.go", "return r, r.sound()", "return r, true"},
	} {
		test := "^TestWildWords$"
		if m.class == "rings" {
			test = "^TestWildRings$"
		}
		list = append(list, testenv.Mutation{
			Name: m.name, File: m.file, From: m.from, To: m.to, Noticed: "--- FAIL: |panic: runtime error",
			Args: []string{"-timeout=10m", "-run", test}, Env: []string{"MOEWIRE_TEST_WILD=" + m.class},
		})
	}
	testenv.RunMutations(t, list)
}
