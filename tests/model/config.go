package model

// Model is one configuration to explore.
type Model struct {
	Name    string
	Ranks   int
	Slots   int
	Program []Call // of every rank of epoch 0
	Other   []Call // of the last rank of epoch 0, when it differs

	// Suspicions bounds how often a deadline fires for a live rank.
	Suspicions int
	// Deaths bounds how many of the processes in Targets stop forever.
	Deaths  int
	Targets uint8
	// Sparse: a rank sends a row to any subset of the owners, else to all.
	Sparse bool
	// Fine splits steps that no correct peer can tell apart.
	Fine bool
	// Patient: a deadline fires only when no rank can go on without it, and
	// the chain of waits says which rank is fenced. Else it may fire in any wait.
	Patient bool
	// MayRelease: a combine may end with an error, as some rank releases
	// without it.
	MayRelease bool
	// Suspects: only these ranks are suspected; 0 means any.
	Suspects uint8
	// Rejoin: the program of epoch 1, after an update in which a new process
	// takes the place of the last rank; or, with Survive, every rank stays that
	// is still a member.
	Rejoin  []Call
	Survive bool

	Mutation Mutation
	// Exact stores whole states instead of 128 bits of each.
	Exact bool
}

// Kind is what a call does.
type Kind uint8

// Calls, as the package's users make them. Send and CombineSend return once
// the inputs are free; Recv and CombineRecv are their hooks.
const (
	Dispatch Kind = iota
	Send
	Recv
	Combine
	CombineSend
	CombineRecv
	Release
	Cancelled // a dispatch that the caller may give up at any moment
	Apart     // a dispatch in which every rank's mask leaves all others out
	Maybe     // a combine that any rank may replace by a release
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

// pairs builds programs with two operations in flight: each of the kinds for
// both of them, then the next kind.
func pairs(n int, body ...Kind) (calls []Call) {
	for i := 0; i+1 < n; i += 2 {
		for _, k := range body {
			calls = append(calls, Call{k, uint8(i)}, Call{k, uint8(i + 1)})
		}
	}
	return calls
}

// program returns the calls of process p in its present epoch.
func (m *Model) program(s *State, p int) []Call {
	switch {
	case s.proc[p].epoch > 0:
		return m.Rejoin
	case p == m.Ranks-1 && m.Other != nil:
		return m.Other
	}
	return m.Program
}

// lastOp is the number of operations that any program of an epoch has: slots
// are not opened for more, because no rank would come.
func (m *Model) lastOp(epoch uint8) (n uint8) {
	programs := [][]Call{m.Program, m.Other}
	if epoch > 0 {
		programs = [][]Call{m.Rejoin}
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

// procs is the number of processes: one more when one is replaced.
func (m *Model) procs() int {
	if m.replaces() {
		return m.Ranks + 1
	}
	return m.Ranks
}

func (m *Model) replaces() bool { return m.Rejoin != nil && !m.Survive }

// initial is the state after construction: every slot is open for its first
// operation.
func (m *Model) initial() State {
	s := State{set: m.all()}
	for p := range m.Ranks {
		q := &s.proc[p]
		q.fresh = uint8(m.Slots)
		for j := range m.Slots {
			l := &q.slot[j]
			l.own, l.served, l.a = uint8(j), uint8(j+1), m.all()
			if m.Mutation == membersAfterOpen { // let it open its first one, too
				l.served, l.a = l.served-uint8(m.Slots), 0
				continue
			}
			q.slab[j].serves = l.served
			q.open[j] = Word{l.served, l.own}
		}
	}
	if m.replaces() {
		s.proc[m.Ranks].pc = pcJoin
	}
	return s
}
