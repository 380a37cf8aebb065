package remote

// Model is one configuration to explore.
type Model struct {
	Name     string
	Ranks    int
	Slots    int
	Capacity int    // messages that may be under way from one rank to another
	Program  []Call // of every rank
	Other    []Call // of the last rank, when it differs

	// Suspicions bounds how often a deadline fires for a live rank. Deaths bounds
	// how many of the ranks in Targets stop forever, Cuts how many links fail.
	Suspicions, Deaths, Cuts int
	Targets                  uint8
	// Sparse: a source has rows for any subset of the owners, else for all.
	Sparse bool
	// MayRelease: a combine may end with an error, as some rank releases
	// without it.
	MayRelease bool
	// Lenient: it is no fault that a message is refused; what comes of it may be
	// one.
	Lenient bool
	// Again: the program behind an update, to which all live ranks come.
	Again []Call

	Mutation Mutation
}

// Kind is what a call does.
type Kind uint8

// Calls, as the package's users make them.
const (
	Dispatch  Kind = iota
	Cancelled      // a dispatch that the caller may give up at any moment
	Combine
	Maybe // a combine that any rank may replace by a release
	Close
	Update
)

// Call is one call of a program. Operations count from the epoch's base.
type Call struct {
	Kind Kind
	Op   uint8
}

// repeat builds programs: the body for each of n operations.
func repeat(n int, body ...Kind) (calls []Call) {
	for i := range n {
		for _, k := range body {
			calls = append(calls, Call{k, uint8(i)})
		}
	}
	return calls
}

// then appends whole operations behind the n first ones.
func then(program []Call, n, more int) []Call {
	for i := range more {
		program = append(program, Call{Dispatch, uint8(n + i)}, Call{Combine, uint8(n + i)})
	}
	return program
}

func (m *Model) program(q *Proc, p int) []Call {
	switch {
	case q.epoch > 0:
		return m.Again
	case p == m.Ranks-1 && m.Other != nil:
		return m.Other
	}
	return m.Program
}

// numOps is the number of operations that any program of an epoch has: slots
// are not opened for more, because no rank would come.
func (m *Model) numOps(epoch uint8) (n uint8) {
	programs := [][]Call{m.Program, m.Other}
	if epoch > 0 {
		programs = [][]Call{m.Again}
	}
	for _, calls := range programs {
		for _, c := range calls {
			if c.Kind != Close && c.Kind != Update {
				n = max(n, c.Op+1)
			}
		}
	}
	return n
}

func (m *Model) calls(k Kind) bool {
	for _, calls := range [][]Call{m.Program, m.Other, m.Again} {
		for _, c := range calls {
			if c.Kind == k {
				return true
			}
		}
	}
	return false
}

// faultless configurations have no reason to lose a rank.
func (m *Model) faultless() bool { return m.Suspicions+m.Deaths+m.Cuts == 0 && m.Again == nil }

func (m *Model) all() uint8 { return 1<<m.Ranks - 1 }

// slotOf returns the slot of an operation number plus one.
func (m *Model) slotOf(op uint8) int { return int(op-1) % m.Slots }

// initial is the state after construction: every slot is open for its first
// operation, and no rank has been told.
func (m *Model) initial() State {
	s := State{}
	s.chain[0][0] = m.all()
	for p := range m.Ranks {
		for j := range m.Slots {
			l := &s.proc[p].slot[j]
			l.served, l.a, l.open = uint8(j+1), m.all(), uint8(j+1)
		}
	}
	return s
}
