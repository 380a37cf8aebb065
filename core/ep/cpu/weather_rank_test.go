package cpu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/multihost"
)

// What the parent and rank 0 leave for the others of a group that is cut.
const (
	healedFile = "healed"
	lastFile   = "last"
)

// roundsTogether is how many rounds all ranks make after a cut.
const roundsTogether = 3

// wantEnd is what a rank must say of a cut.
func (s *groupSpec) wantEnd(rank int) string {
	if slices.Contains(s.Away, rank) {
		return "off"
	}
	return fmt.Sprint("from ", s.Away)
}

// roundsWithCut plays until the cable is cut, then on until it is clear which ranks go
// on, and again when all are together.
func (s *rankSpec) roundsWithCut(w *world, dom *multihost.Domain) error {
	r := rand.New(rand.NewPCG(s.Seed, 1)) // all ranks draw the same
	err := s.roundsUntilCut(w, r)
	switch {
	case errors.Is(err, ep.ErrFenced) && slices.Contains(s.Away, s.Rank):
		fmt.Println("cut off")
	case err != nil:
		return err
	default:
		fmt.Println("cut from", s.Away)
	}
	if _, err := s.await(healedFile); err != nil {
		return err
	}
	if err := s.update(w.bufs[s.Rank], dom); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	r = rand.New(rand.NewPCG(s.Seed, 2))
	for i := range roundsTogether {
		mask, err := s.oneRound(w, r)
		if err == nil && slices.Contains(mask, 0) {
			err = fmt.Errorf("mask %v, all are back", mask)
		}
		if err != nil {
			return fmt.Errorf("round %d after the update: %w", i, err)
		}
	}
	return nil
}

// roundsUntilCut returns nil on a rank that goes on, after a few rounds without
// the others. Rank 0 says which round is the last one, before it begins the next: so
// every rank that plays a round with rank 0 knows.
func (s *rankSpec) roundsUntilCut(w *world, r *rand.Rand) error {
	for i := 0; ; i++ {
		mask, err := s.oneRound(w, r)
		if err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
		fmt.Println("round", i)
		if slices.Contains(s.Away, s.Rank) {
			continue
		}
		last, there := s.last()
		switch lost := without(mask); {
		case len(lost) > 0 && !slices.Equal(lost, s.Away):
			// One of them after the other is possible, no other rank is.
			if slices.ContainsFunc(lost, func(r int) bool { return !slices.Contains(s.Away, r) }) {
				return fmt.Errorf("round %d: ranks %v are lost", i, lost)
			}
		case len(lost) > 0 && s.Rank == 0 && !there:
			if err := s.leave(lastFile, []byte(strconv.Itoa(i+2))); err != nil {
				return err
			}
		case there && i >= last:
			return s.wantCut(lost)
		}
	}
}

func (s *rankSpec) wantCut(lost []int) error {
	if !slices.Equal(lost, s.Away) {
		return fmt.Errorf("ranks %v are lost, want %v", lost, s.Away)
	}
	return nil
}

// last is the number of the last round, if rank 0 has said it.
func (s *rankSpec) last() (n int, there bool) {
	text, err := os.ReadFile(filepath.Join(s.Dir, lastFile))
	if err != nil {
		return 0, false
	}
	n, err = strconv.Atoi(string(text))
	return n, err == nil
}

// without lists the ranks that a mask leaves out.
func without(mask []int32) (ranks []int) {
	for r, on := range mask {
		if on == 0 {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// oneRound is a dispatch and a combine without a deadline, compared with the
// oracle.
func (s *rankSpec) oneRound(w *world, r *rand.Rand) (mask []int32, err error) {
	shape, _ := s.draw(r, 0)
	ins := flatInputs(r, shape, routings[r.IntN(len(routings))])
	return w.exchange(s.Rank, shape.shape, packed(ins), -1)
}

// update begins another epoch with all ranks.
func (s *rankSpec) update(buf *cpu.Buffer, dom *multihost.Domain) error {
	st, err := buf.Prepare()
	if err != nil {
		return err
	}
	cfg := s.config()
	params, err := cpu.Params(cfg, st)
	if err != nil {
		return err
	}
	l, err := multihost.Relist(dom, params)
	if err != nil {
		return err
	}
	all, err := s.exchange("again", l.Metadata(), -1)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	change, err := l.Reconnect(all, processTimeout)
	if err != nil {
		return err
	}
	next, err := s.standing(all)
	if err != nil {
		return err
	}
	return buf.Install(next.Epoch, next.Next, change.Commit)
}

// standing is the epoch that the metadata of all ranks makes.
func (s *rankSpec) standing(all [][]byte) (next ep.Standing, err error) {
	params := make([][]byte, len(all))
	for r, m := range all {
		info, err := multihost.ParseMetadata(m)
		if err != nil {
			return next, err
		}
		params[r] = info.Shm.Params
	}
	return cpu.CheckParams(s.Rank, params)
}
