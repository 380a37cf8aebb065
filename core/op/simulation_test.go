package op

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

// request is a work request that the simulated NIC has: it writes into its
// transfer's memory until it completes.
type request struct {
	id   uint64
	of   *watched
	part int
}

// watched is a transfer as the test knows it, apart from the code under test.
type watched struct {
	ref     Ref
	memory  []byte
	snap    []byte // of the memory, when it was said to be released
	parts   int
	left    int
	bytes   int64
	first   error // of the requests that failed
	ended   bool
	end     Result
	dropped bool
}

// sim drives a table and a NIC that completes in any order, some requests
// twice, some with an error.
type sim struct {
	rng   *rand.Rand
	table *Table
	nic   []request
	old   []uint64 // numbers that have completed: they may come again
	all   []*watched
	cap   int
}

// run takes random steps and returns the first broken invariant.
func run(seed uint64) (err error) {
	const slots = 4
	table, err := NewTable(slots)
	if err != nil {
		return err
	}
	s := &sim{rng: rand.New(rand.NewPCG(seed, 1)), table: table, cap: slots}
	for range 300 {
		if err := s.step(); err != nil {
			return err
		}
		if err := s.check(); err != nil {
			return err
		}
	}
	return s.finish()
}

func (s *sim) step() error {
	switch s.rng.IntN(8) {
	case 0, 1:
		return s.begin()
	case 2, 3, 4:
		return s.complete()
	case 5:
		return s.again()
	case 6:
		if w := s.any(); w != nil {
			won, err := s.table.Cancel(w.ref, errSecond)
			if err != nil || won == w.ended {
				return fmt.Errorf("cancel: %v, %v of a transfer that had ended: %v", won, err, w.ended)
			}
			s.note(w)
		}
	case 7:
		if w := s.any(); w != nil && w.ended {
			w.dropped = true
			return s.table.Drop(w.ref)
		}
	}
	return nil
}

func (s *sim) any() *watched {
	var live []*watched
	for _, w := range s.all {
		if !w.dropped {
			live = append(live, w)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return live[s.rng.IntN(len(live))]
}

func (s *sim) begin() error {
	w := &watched{parts: 1 + s.rng.IntN(3), memory: make([]byte, 4)}
	inUse := 0
	for _, o := range s.all {
		if !o.dropped || o.left > 0 {
			inUse++
		}
	}
	ref, err := s.table.Begin(w.parts)
	if full := inUse == s.cap; full != errors.Is(err, ErrWouldBlock) || (err != nil && !full) {
		return fmt.Errorf("begin with %d of %d in use: %v", inUse, s.cap, err)
	}
	if err != nil {
		return nil
	}
	w.ref, w.left = ref, w.parts
	s.all = append(s.all, w)
	posted := w.parts
	if s.rng.IntN(4) == 0 {
		posted = s.rng.IntN(w.parts)
	}
	for p := range posted {
		s.nic = append(s.nic, request{ref.RequestID(p), w, p})
	}
	if posted == w.parts {
		return nil
	}
	w.left, w.first = posted, errFirst
	for p := posted; p < w.parts; p++ { // could not be posted
		if got := s.table.Complete(ref.RequestID(p), errFirst, 0, 0); got != Counted {
			return fmt.Errorf("a part that was not posted was %d, not counted", got)
		}
	}
	s.note(w)
	return nil
}

// complete ends a request of the NIC, which has written to its memory.
func (s *sim) complete() error {
	if len(s.nic) == 0 {
		return nil
	}
	i := s.rng.IntN(len(s.nic))
	q := s.nic[i]
	s.nic = append(s.nic[:i], s.nic[i+1:]...)
	q.of.memory[q.part]++
	s.old = append(s.old, q.id)
	var err error
	n := int64(s.rng.IntN(100))
	switch s.rng.IntN(6) {
	case 0:
		err, n = errFirst, 0
	case 1:
		err, n = errSecond, 0
	}
	q.of.left--
	q.of.bytes += n
	if q.of.first == nil {
		q.of.first = err
	}
	if got := s.table.Complete(q.id, err, n, 0); got != Counted {
		return fmt.Errorf("a request's end was %d, not counted", got)
	}
	s.note(q.of)
	return nil
}

// again lets an old completion come once more.
func (s *sim) again() error {
	if len(s.old) == 0 {
		return nil
	}
	id := s.old[s.rng.IntN(len(s.old))]
	if got := s.table.Complete(id, errSecond, 1000, 0); got == Counted {
		return fmt.Errorf("completion %#x counted twice", id)
	}
	return nil
}

// note remembers the end of a transfer as it was first seen.
func (s *sim) note(w *watched) {
	if res, err := s.table.Look(w.ref); err == nil && !w.ended && res.State != Pending {
		w.ended, w.end = true, res
	}
}

// check compares every transfer with what the test knows of it.
func (s *sim) check() error {
	for _, w := range s.all {
		if w.dropped {
			continue
		}
		res, err := s.table.Look(w.ref)
		if err != nil {
			return fmt.Errorf("a transfer that was not dropped: %w", err)
		}
		if err := w.compare(res); err != nil {
			return err
		}
	}
	return nil
}

func (w *watched) compare(res Result) error {
	switch {
	case res.Released != (w.left == 0):
		return fmt.Errorf("released %v with %d requests at the NIC", res.Released, w.left)
	case w.ended != (res.State != Pending):
		return fmt.Errorf("state %v of a transfer that had ended: %v", res.State, w.ended)
	case w.ended && (res.State != w.end.State || res.Err != w.end.Err):
		return fmt.Errorf("ended as %v (%v), then became %v (%v)", w.end.State, w.end.Err, res.State, res.Err)
	case res.State == Failed && res.Err != w.first:
		return fmt.Errorf("error %v, the first was %v", res.Err, w.first)
	case res.State == Done && (w.first != nil || w.left > 0 || res.NumBytes != w.bytes):
		return fmt.Errorf("done with %d left, error %v, %d bytes of %d", w.left, w.first, res.NumBytes, w.bytes)
	}
	if !res.Released {
		return nil
	}
	if w.snap == nil {
		w.snap = append([]byte{}, w.memory...)
	}
	if string(w.snap) != string(w.memory) {
		return errors.New("memory changed after its release")
	}
	return nil
}

// finish lets the NIC end everything: nothing may be left.
func (s *sim) finish() error {
	for len(s.nic) > 0 {
		if err := s.complete(); err != nil {
			return err
		}
		if err := s.check(); err != nil {
			return err
		}
	}
	for _, w := range s.all {
		if !w.dropped {
			if err := s.table.Drop(w.ref); err != nil {
				return err
			}
		}
	}
	if n := s.table.Stats().InUse; n != 0 {
		return fmt.Errorf("%d slots are in use at the end", n)
	}
	return nil
}
