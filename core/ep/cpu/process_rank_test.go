package cpu_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/transport/verbs"
	"github.com/moewire/moewire/core/wire"
)

// A rank that is a process of its own: the test binary again, with rankVariable
// set to its rankSpec.
const (
	rankVariable = "MOEWIRE_TEST_EP_RANK"
	keyVariable  = "MOEWIRE_TEST_EP_KEY"
)

// processTimeout bounds every wait between processes, on a machine that is
// emulated and busy.
const processTimeout = 2 * time.Minute

// groupSpec is a group of processes; every rank gets it.
type groupSpec struct {
	Hosts         string // one letter per rank, equal letters: the same host; capitals have otherDevice
	Setting       multihost.Setting
	Deterministic bool
	Seed          uint64
	Killed        int    // the rank that will be killed; -1: none
	Dir           string // where ranks leave what others read

	// By rank; nil: all on the loopback device, and devices by host.
	Addresses, Devices []string
	Bound              time.Duration // of silence; 0: a process that starves is not dead
	Away               []int         // ranks at the other end of a cable that will be cut
	Dies               bool          // an RDMA device, in the middle
	Lacks              string        // "CALL ERRNO": rank 1 is stopped then, and rank 0 has nothing left

	command func(rank int, words ...string) []string // runs a rank elsewhere
}

type rankSpec struct {
	groupSpec
	Rank int
}

func TestMain(m *testing.M) {
	text := os.Getenv(rankVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	go func() { // the parent's end of the pipe is the life line
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	spec, err := rankSpec{}, error(nil)
	if err = json.Unmarshal([]byte(text), &spec); err == nil {
		err = spec.run()
	}
	if err != nil {
		fmt.Printf("rank %d failed: %v\n", spec.Rank, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (s *rankSpec) run() error {
	callTimeout = processTimeout
	dom, err := s.meet()
	if err != nil {
		return err
	}
	cfg := s.config()
	kern, err := kernels.New(0)
	if err != nil {
		return errors.Join(err, dom.Close())
	}
	buf, err := cpu.New(dom, kern, cfg)
	if err != nil {
		return errors.Join(err, dom.Close())
	}
	fmt.Println("paths", s.carriers(dom))
	w := &world{bufs: make([]*cpu.Buffer, len(s.Hosts))}
	w.bufs[s.Rank] = buf
	switch {
	case s.Away != nil:
		err = s.roundsWithCut(w, dom)
	case s.Lacks != "":
		return s.callWithout(w)
	case s.Killed < 0:
		err = s.rounds(w)
		fmt.Println("then", s.carriers(dom))
	default:
		err = s.roundsWithDeath(w)
	}
	// A rank that leaves may leave others without what is still on its way.
	if err == nil {
		_, err = s.exchange("over", nil, s.Killed)
	}
	if err = errors.Join(err, buf.Close()); err == nil {
		fmt.Println("closed")
		_, err = s.await(leaveFile) // the parent looks at what is left
	}
	return err
}

// await reads a file of the parent's, or of another rank.
func (s *rankSpec) await(name string) (text []byte, err error) {
	for until := time.Now().Add(processTimeout); ; time.Sleep(time.Millisecond) {
		if text, err = os.ReadFile(filepath.Join(s.Dir, name)); err == nil || time.Now().After(until) {
			return text, err
		}
	}
}

// What the parent leaves for ranks: all may end; the device is dead.
const (
	leaveFile = "leave"
	deadFile  = "dead"
)

func (s *rankSpec) config() ep.Config {
	return ep.Config{NumBytes: 64 << 20, DebugFill: true, Deterministic: s.Deterministic}
}

// The rings are so small that all of them are used many times over, and that
// the rows of most dispatches need several messages.
var processLink = link.Config{RingBytes: 1 << 14, NumMessages: 4}

func (s *rankSpec) meet() (*multihost.Domain, error) {
	keys, err := wire.NewKeyring(func() ([]byte, error) { return []byte(os.Getenv(keyVariable)), nil })
	if err != nil {
		return nil, err
	}
	cfg := s.config()
	params, err := cpu.Params(cfg, ep.Standing{})
	if err != nil {
		return nil, err
	}
	at := netip.MustParseAddrPort("127.0.0.1:0")
	if s.Addresses != nil {
		at = netip.AddrPortFrom(netip.MustParseAddr(s.Addresses[s.Rank]), 0)
	}
	l, err := multihost.Open(multihost.Config{
		Shm: shm.Config{Rank: s.Rank, NumRanks: len(s.Hosts), ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params},
		Carriers: []multihost.Carrier{
			{Setting: multihost.RDMA, Open: func(int) (transport.Transport, error) { return verbs.NewGroup(verbs.Config{Device: s.device(s.Rank)}) }},
			{Setting: multihost.TCP, Open: func(int) (transport.Transport, error) {
				return tcp.Open(tcp.Config{Listen: []netip.AddrPort{at}, Keyring: keys})
			}},
		},
		Setting: s.Setting, Keys: keys, Listen: at, Host: s.Hosts[s.Rank : s.Rank+1], Link: processLink,
		Bound: cmp.Or(s.Bound, time.Hour),
		Words: []int64{layout.WaitsFor(), layout.Beat(), layout.Quiesced()}, Moments: []int64{layout.Since()},
	})
	if err != nil {
		return nil, err
	}
	all, err := s.exchange("metadata", l.Metadata(), -1)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l.Connect(all, processTimeout)
}

// exchange gives every rank's bytes to all but one, through files; each name
// once.
func (s *rankSpec) exchange(what string, own []byte, without int) ([][]byte, error) {
	if err := s.leave(fmt.Sprint(what, s.Rank), own); err != nil {
		return nil, err
	}
	all := make([][]byte, len(s.Hosts))
	for r := range all {
		if r == without {
			continue
		}
		var err error
		if all[r], err = s.await(fmt.Sprint(what, r)); err != nil {
			return nil, fmt.Errorf("%s: rank %d never came: %w", what, r, err)
		}
	}
	return all, nil
}

// leave makes a file that is there as a whole or not at all.
func (s *groupSpec) leave(name string, text []byte) error {
	path := filepath.Join(s.Dir, name)
	if err := os.WriteFile(path+".part", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// carriers has one word per rank.
func (s *rankSpec) carriers(dom *multihost.Domain) string {
	var words []string
	for _, p := range dom.Paths() {
		words = append(words, p.Carrier)
	}
	return strings.Join(words, " ")
}

// numRounds is how many dispatches with combines a group makes.
const numRounds = 24

// rounds compares three of four rounds with the oracle. Of each fourth round it prints
// a sum of all bits: "outs" of what combines gave, "bits" of everything.
func (s *rankSpec) rounds(w *world) error {
	r := rand.New(rand.NewPCG(s.Seed, 1)) // all ranks draw the same
	outs, bits := sha256.New(), sha256.New()
	for i := range numRounds {
		if s.Dies && i == numRounds-4 {
			if _, err := s.await(deadFile); err != nil {
				return err
			}
		}
		fmt.Println("round", i)
		shape, flat := s.draw(r, i)
		ins := flatInputs(r, shape, routings[r.IntN(len(routings))])
		var err error
		switch i % 4 {
		case 0:
			err = w.roundTrip(s.Rank, shape.shape, packed(ins))
		case 1:
			err = w.roundTripFP8(s.Rank, shape.shape, packed(ins))
		case 2:
			err = w.flatTrip(s.Rank, shape, ins, i%8 == 2)
		case 3:
			var o *outcome
			if o, err = w.runBoth(s.Rank, shape, flat, &ins[s.Rank]); err == nil {
				outs.Write(o.out)
				fmt.Fprintf(bits, "%v", *o)
			}
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	fmt.Printf("outs %x\nbits %x\n", outs.Sum(nil), bits.Sum(nil))
	if members := w.bufs[s.Rank].Members(); members != rankset.Upto(len(s.Hosts)) {
		return fmt.Errorf("members are %v, nobody was killed", members)
	}
	if n := w.bufs[s.Rank].Counters().NumMessagesDropped; n != 0 {
		return fmt.Errorf("%d messages were dropped", n)
	}
	return nil
}

func packed(ins []flatInput) (all []input) {
	for _, in := range ins {
		all = append(all, in.input)
	}
	return all
}

// draw is the shape of a round. Rows are long enough for several messages.
func (s *rankSpec) draw(r *rand.Rand, i int) (f flatShape, flat bool) {
	f = randomFlatShape(r, len(s.Hosts))
	f.hidden, f.maxTokens = castBlock*(1+r.IntN(2)), 1+r.IntN(12)
	switch i % 4 {
	case 0, 1:
		f.fp32 = false
	case 3:
		if flat = r.IntN(2) == 1; r.IntN(2) == 1 {
			f.fp8, f.hidden, f.scales = true, 512, protocol.FP8+protocol.DType(r.IntN(3))
		}
	}
	return f, flat
}

// roundsBeforeKill is half of the rounds when a rank is killed. The rank to be killed plays these
// rounds, if it gets so far; then the others wait for it. A rank that does not see its
// death in one round sees it in the next.
const roundsBeforeKill = 8

func (s *rankSpec) roundsWithDeath(w *world) error {
	r := rand.New(rand.NewPCG(s.Seed, 1))
	var gone bool
	for i := range 2 * roundsBeforeKill {
		if s.Rank == s.Killed && i == roundsBeforeKill {
			time.Sleep(processTimeout)
			return errors.New("it was not killed")
		}
		shape, _ := s.draw(r, 0)
		ins := flatInputs(r, shape, routings[r.IntN(len(routings))])
		seen, err := w.roundWithDeath(s.Rank, s.Killed, shape.shape, packed(ins))
		if err == nil && gone && !seen {
			err = fmt.Errorf("rank %d is back", s.Killed)
		}
		if gone = seen; err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		fmt.Println("round", i)
	}
	if members := w.bufs[s.Rank].Members(); !gone || members != rankset.FromWord(1<<len(s.Hosts)-1-1<<s.Killed) {
		return fmt.Errorf("members are %v, rank %d must be missing from them, and from every mask (%v)", members, s.Killed, gone)
	}
	if lost := whyLost(w.bufs[s.Rank]); len(lost) != 1 || !strings.Contains(lost[0].Why, ep.WhyEnded) {
		return fmt.Errorf("rank %d was killed, the reasons are %v", s.Killed, lost)
	}
	return nil
}

// roundWithDeath is roundTrip when a rank may die at any point of it. Of that
// rank there are all rows or none, as the mask says. Its experts count or
// do not.
func (w *world) roundWithDeath(rank, target int, s shape, ins []input) (gone bool, err error) {
	d := new(dispatched)
	a := w.args(rank, s, &ins[rank], d)
	a.ActiveRanks = slices.Repeat([]int32{1}, s.ranks)
	if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
		return false, err
	}
	all, lost := slices.Clone(ins), (*input)(nil)
	if a.ActiveRanks[target] == 0 {
		all[target], lost = input{}, &ins[target]
	}
	if err := d.checkBeside(rank, s, all, lost); err != nil {
		return false, err
	}
	d.compute(rank, s)
	c := &ep.CombineArgs{
		X: d.res.CombineX, ZeroCopy: true, TopkIdx: ins[rank].topk, TopkWeights: ins[rank].weights,
		Out: make([]byte, ins[rank].tokens*s.hidden*2), NumTokens: ins[rank].tokens, TopK: s.topk, Timeout: callTimeout,
		ActiveRanks: slices.Repeat([]int32{1}, s.ranks),
	}
	if _, err := w.bufs[rank].Combine(d.res.Op, c, ep.PhaseDone, -1); err != nil {
		return false, err
	}
	isLost := func(id int64) bool { return c.ActiveRanks[id/int64(s.experts/s.ranks)] == 0 }
	if string(c.Out) != string(wantCombine(&ins[rank], s.hidden, s.topk, isLost)) {
		return false, fmt.Errorf("%v: rank %d: combine differs from the oracle, with the mask %v", s, rank, c.ActiveRanks)
	}
	for r, on := range c.ActiveRanks {
		if on == 0 && r != target {
			return false, fmt.Errorf("rank %d is out, it was not killed", r)
		}
	}
	return c.ActiveRanks[target] == 0, nil
}
