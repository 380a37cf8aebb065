package cuda

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestNothingRaces: in a sequence of operations in which ranks hear of one another by
// the kernels' words alone, these order all accesses.
func TestNothingRaces(t *testing.T) {
	testenv.InAll(t)
	emu := emulate(t)
	seed := testenv.Seed(t)
	emu.Watch(t)
	for name, flags := range watchedForms {
		t.Run(name, func(t *testing.T) {
			unsynchronised(t, emu, rngOf(seed, 19, flags), flags)
			require.Empty(t, emu.Races())
		})
	}
}

// TestFillingRacesWithNobody: a rank that has read or written there has said so before.
func TestFillingRacesWithNobody(t *testing.T) {
	testenv.InAll(t)
	emu := emulate(t)
	emu.Watch(t)
	unsynchronised(t, emu, rand.New(rand.NewPCG(testenv.Seed(t), 37)), 0, (*group).fill)
	require.Empty(t, emu.Races())
}

// watchedForms are those of the test above.
var watchedForms = map[string]protocol.Flags{"usual": 0, "in order": protocol.FlagOrdered, "flat": protocol.FlagFlat | protocol.FlagOrdered}

// unsynchronised runs operations of two ranks, of each kind. The host waits at
// the end only.
func unsynchronised(t *testing.T, emu *cudatest.Driver, rng *rand.Rand, flags protocol.Flags, ready ...func(*group)) {
	emu.Schedule(rng.Uint64(), 32, 8)
	s := layout.Shape{MaxTokens: 12, Hidden: 64, NumExperts: 4, NumRanks: 2}
	s.Flat, s.Columns = flags&protocol.FlagFlat != 0, flatColumns(2, flags, 12)
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, 2, 2, slabs.SizeBytes)
	g.fewest = 10 // more than blocks
	for _, f := range ready {
		f(g)
	}
	for _, m := range g.ranks {
		m.threads = threads{plan: 8, row: 8, wait: 8}
	}
	o := g.random(rng, s, 2, flags, 0)
	for i, slot := range []int{0, 0, 1, 1, 0, 1, 0} { // a slot at once again, or two in turn
		for r := range g.ranks {
			g.step(o, r, i, slot)
		}
	}
	g.sync()
	for r, m := range g.ranks {
		require.Zero(t, m.report().Error)
		o.checkIdentity(t, r)
	}
}

// step is the i-th operation of rank r: some are combined again, some released;
// in one rank 0 leaves out rank 1.
func (g *group) step(o *op, r, i, slot int) {
	m := g.ranks[r]
	o.calls[r].Stats, _ = tensor[int64](m, len(o.calls))
	usual := o.calls[r]
	if i == 3 { // in the slot of the operation before
		o.calls[r] = o.apart(m, r)
	}
	g.identity(o, r, slot)
	o.calls[r] = usual
	if i%3 == 1 {
		g.identityAgain(o, r, slot)
	}
	if i%4 == 3 {
		c := o.calls[r].Call
		c.Slot = slot
		require.NoError(g.t, m.Release(&c))
	}
}

// apart is a call in which rank 0 leaves out rank 1, which has no rows for it
// (those would be a hole, which an owner copies while it is filled).
func (o *op) apart(m *member, r int) Dispatch {
	c := o.calls[r]
	var active []int32
	var ids []int64
	c.Active, active = tensor[int32](m, 2)
	active[0], active[1] = 1, int32(r)
	c.TopkIdx, ids = tensor[int64](m, len(o.ids[r]))
	for i := range ids {
		ids[i] = int64(2*r + i%2)
	}
	return c
}

// notNeeded are uses of ordering without which nothing races in this sequence,
// by what stands in the sources, and why they are there all the same.
var notNeeded = map[string]string{
	"acquire: mw_load_acquire_sys(&c.host_control->members)": "the host's word: what the host does is not watched",
	"acquire: mw_load_acquire_sys(done) >= want; }) == MW_READY": "whose rows come in the next operation has " +
		"read its outputs before: only a rank that is left out, or lost, is ordered by `done`",
	"release: mw_store_release_sys(&c.counters->num_records, number + 1)":                         "for the host, whose reads are not watched",
	"release: mw_store_release_sys(mw_line_at(mw_slab_at(c, rank, s->slab_of[rank]), c.slab.done": "as above",
	"release: mw_store_release_sys(&mw_inbox_at(c, rank)->y_ready[slot], mw_word(op, s->combines | MW_FINAL))": "it says that " +
		"nothing more comes; no data belongs to it",
	"barrier: s->reduced = s->combines;\n  }\n  __syncthreads();":                    "only a rank that is out fails there",
	"barrier: __syncthreads();\n  mw_wait_together(c, [&](int rank) { mw_await_done": "only where an owner has opened late",
	"barrier: __syncthreads();\n  if (!b->lacks":                                     "only where an owner has no room: TestNoRoomIsReportedInOrder",
}

// why says why a use is not needed, or "".
func why(t testing.TB, use string) string {
	file, kind, _ := strings.Cut(use, " ")
	file, at, _ := strings.Cut(file, ":")
	for what, reason := range notNeeded {
		of, what, _ := strings.Cut(what, ": ")
		above := strings.Count(what, "\n")
		if strings.HasPrefix(what, "__syncthreads") {
			above = 0
		}
		if of == kind && strings.Contains(sourceAround(t, file, at, above), what) {
			return reason
		}
	}
	return ""
}

// sourceAround is a line of the kernels' sources with the one behind it, and some above.
func sourceAround(t testing.TB, file, at string, above int) string {
	text, err := os.ReadFile(filepath.Join("kernels", file))
	require.NoError(t, err)
	line, err := strconv.Atoi(at)
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[line-1-above:min(line+1, len(lines))], "\n")
}

// TestEveryOrderIsNeeded leaves each use of ordering without its effect, one at
// a time: something races then. MOEWIRE_MUTATIONS=1 does all, else some.
func TestEveryOrderIsNeeded(t *testing.T) {
	testenv.InAll(t)
	emu := emulate(t)
	seed, step := testenv.Seed(t), 12
	if os.Getenv("MOEWIRE_MUTATIONS") != "" {
		step = 1
	}
	emu.Watch(t)
	known := map[string]bool{}
	// Rows in order have an exchange of their own; what comes before and behind it
	// is ordered by that, too, so only its own uses are left out. Flat rows have
	// none, and with one block per rank some barriers have one thread on both sides.
	for _, name := range []string{"usual", "in order"} {
		t.Run(name, func(t *testing.T) { everyOrder(t, emu, watchedForms[name], known, seed, step) })
	}
}

// everyOrder leaves out the uses of a form that are not known yet.
func everyOrder(t *testing.T, emu *cudatest.Driver, flags protocol.Flags, known map[string]bool, seed uint64, step int) {
	t.Run("all", func(t *testing.T) {
		unsynchronised(t, emu, rand.New(rand.NewPCG(seed, 23)), flags)
		require.Empty(t, emu.Races())
	})
	seen := emu.Uses()
	require.Greater(t, len(seen), 30)
	uses := slices.DeleteFunc(seen, func(use string) bool { return known[use] })
	require.NotEmpty(t, uses)
	for _, use := range uses {
		known[use] = true
	}
	for i := int(seed % uint64(step)); i < len(uses); i += step {
		t.Run(uses[i], func(t *testing.T) {
			if reason := why(t, uses[i]); reason != "" {
				t.Skip(reason)
			}
			emu.LeaveOut(uses[i])
			t.Cleanup(func() { emu.LeaveOut("") })
			found := ""
			for n := uint64(0); found == "" && n < 400; n++ { // in some orders rows do not meet
				t.Run(strconv.FormatUint(n, 10), func(t *testing.T) { // each closes what it has made
					unsynchronised(t, emu, rand.New(rand.NewPCG(seed, 29+n)), flags)
					found, _, _ = strings.Cut(emu.Races(), "\n")
				})
			}
			require.NotEmpty(t, found)
			t.Log(found)
		})
	}
}

// TestNoRoomIsReportedInOrder: the thread that gives an owner nothing looks behind the barrier
// at which all threads have told of owners without room. It races without that barrier.
func TestNoRoomIsReportedInOrder(t *testing.T) {
	testenv.InAll(t)
	emu := emulate(t)
	emu.Watch(t)
	seed := testenv.Seed(t)
	races := withoutRoom(t, emu, rand.New(rand.NewPCG(seed, 41)))
	use, line := barrierBefore(t, emu.Uses(), "if (!b->lacks")
	require.NotContains(t, races, line) // rank 1, which is lost, races with it elsewhere
	emu.LeaveOut(use)
	t.Cleanup(func() { emu.LeaveOut("") })
	for n := uint64(0); !strings.Contains(races, line) && n < 100; n++ { // in some orders the threads do not meet
		races = withoutRoom(t, emu, rand.New(rand.NewPCG(seed, 43+n)))
	}
	require.Contains(t, races, line)
}

// barrierBefore is the use of a barrier in the line before a text, and the text's line.
func barrierBefore(t testing.TB, uses []string, text string) (use, line string) {
	for _, use := range uses {
		file, kind, _ := strings.Cut(use, " ")
		file, at, _ := strings.Cut(file, ":")
		if _, next, _ := strings.Cut(sourceAround(t, file, at, 0), "\n"); kind == "barrier" && strings.Contains(next, text) {
			n, err := strconv.Atoi(at)
			require.NoError(t, err)
			return use, fmt.Sprintf("%s:%d ", file, n+1)
		}
	}
	t.Fatalf("no barrier before %q", text)
	return "", ""
}

// withoutRoom runs a dispatch of two ranks, in which a wild counter of rank 1 leaves rank 0
// no room there, and returns what has raced.
func withoutRoom(t *testing.T, emu *cudatest.Driver, rng *rand.Rand) (races string) {
	t.Run("", func(t *testing.T) { // which closes what it has made
		emu.Schedule(rng.Uint64(), 32, 8)
		g, o, _ := small(t, 2)
		for _, m := range g.ranks {
			m.threads = threads{plan: 8, row: 8, wait: 8}
		}
		o.ids[0][0] = 2 // the first expert of rank 1
		g.starts(o, 1)
		eventually(t, "rank 1 waits", func() bool { return g.ranks[1].Waits() == rankset.Of(0) })
		g.overwrite(g.ranks[1].counterAt(0), 1<<40)
		g.starts(o, 0)
		mustWild(t, g.ranks[0], 1, protocol.WildCounter)
		g.lose(1, 0, 1)
		g.sync()
		races = emu.Races()
	})
	return races
}

// TestNobodyIsEarly: words that are said by the first block to end, and not by the
// last one, are found out for races in every run, whatever the values were: rows
// that have arrived before they are placed, outputs that are published before they
// are copied, or released before they are read.
func TestNobodyIsEarly(t *testing.T) {
	testenv.InAll(t)
	early := func(name string, kernel int, l Loads) {
		t.Run(name, func(t *testing.T) {
			emu := emulate(t)
			emu.Watch(t)
			emu.Hurry(t, kernelNames[kernel])
			overlapping(t, emu, rand.New(rand.NewPCG(testenv.Seed(t), 500)), l)
			require.NotEmpty(t, emu.Races())
		})
	}
	all := []Loads{Narrow, Usual, Deep}
	if !testenv.Long(t) {
		all = all[testenv.Seed(t)%3:][:1]
	}
	for _, l := range all {
		early(fmt.Sprintf("arrive/%d", l), placeKernelOf(l), l)
		early(fmt.Sprintf("done/%d", l), reduceKernelOf(0, l), l)
	}
	early("y_ready", kernelPublish, ByShape)
}

// overlapping runs operations in which both ranks send many rows to each other,
// and does not look at what comes out.
func overlapping(t *testing.T, emu *cudatest.Driver, rng *rand.Rand, l Loads) {
	emu.Schedule(rng.Uint64(), 32, 8)
	s := layout.Shape{MaxTokens: 24, Hidden: 64, NumExperts: 4, NumRanks: 2}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	g := newGroup(t, 2, 2, slabs.SizeBytes)
	g.fewest = 24
	for _, m := range g.ranks {
		m.threads = threads{plan: 8, row: 8, wait: 8}
		m.cfg.Loads = l
	}
	o := g.random(rng, s, 2, 0, 0)
	for range 3 {
		for r := range g.ranks {
			g.identity(o, r, 0)
		}
	}
	g.sync()
}
