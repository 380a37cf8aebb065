package model

import "fmt"

var (
	dc   = []Kind{Dispatch, Combine}
	dcc  = []Kind{Dispatch, Combine, Combine}
	srcc = []Kind{Send, Recv, CombineSend, CombineRecv}
)

// two is a configuration of two ranks.
func two(name string, slots int, program []Call, m Model) *Model {
	m.Name, m.Ranks, m.Slots, m.Program = name, 2, slots, program
	return &m
}

// three is one of three ranks.
func three(name string, slots int, program []Call, m Model) *Model {
	m.Name, m.Ranks, m.Slots, m.Program = name, 3, slots, program
	return &m
}

// turns are n times an operation that every rank has for itself, and one that
// they have together.
func turns(n int) (program []Call) {
	for i := range uint8(n) {
		program = append(program, Call{Apart, 2 * i}, Call{Combine, 2 * i}, Call{Dispatch, 2*i + 1}, Call{Combine, 2*i + 1})
	}
	return program
}

// then appends whole operations after the n first ones.
func then(program []Call, n, more int) []Call {
	for i := range more {
		program = append(program, Call{Dispatch, uint8(n + i)}, Call{Combine, uint8(n + i)})
	}
	return program
}

// rejoining: rank 1 makes more operations than rank 0 before its update.
func rejoining(before, after int, m Model) *Model {
	m.Name, m.Ranks, m.Slots = fmt.Sprintf("rejoin, N=%d then %d", before, after), 2, 1
	m.Program = append(repeat(before, dc...), Call{Update, 0})
	m.Other = repeat(before+1, dc...)
	m.Rejoin = repeat(after, dc...)
	return &m
}

// surviving: both ranks come to an update, in the middle of what they do.
func surviving(name string, slots int, program []Call, m Model) *Model {
	m.Ranks, m.Slots, m.Survive = 2, slots, true
	m.Name = fmt.Sprintf("update of survivors, %s, S=%d", name, slots)
	m.Program = append(program, Call{Update, 0})
	m.Rejoin = repeat(2, dc...)
	return &m
}

// faults of the configurations: suspicion of live ranks, and a death.
var (
	suspicion = Model{Suspicions: 2}
	sparse    = Model{Suspicions: 2, Sparse: true}
	death     = Model{Deaths: 1, Targets: 1, Sparse: true}
	both      = Model{Suspicions: 1, Deaths: 1, Targets: 1, Sparse: true}
)

func with(m Model, change func(*Model)) Model {
	change(&m)
	return m
}

func mayRelease(m *Model) { m.MayRelease = true }

func configurations() []*Model {
	return []*Model{
		two("d c, S=1, N=4, nothing fails", 1, repeat(4, dc...), Model{Sparse: true, Fine: true}),
		two("d c, S=2, N=4, nothing fails", 2, repeat(4, dc...), Model{Sparse: true}),
		two("d d c c, S=2, N=4, nothing fails", 2, pairs(4, dc...), Model{Sparse: true}),
		two("hooks, S=2, N=4, nothing fails", 2, pairs(4, srcc...), Model{}),
		two("d c c, S=1, N=3, nothing fails", 1, repeat(3, dcc...), Model{Sparse: true}),
		two("d, S=2, N=4, nothing fails", 2, repeat(4, Dispatch), Model{Sparse: true}),
		two("d c, S=1, N=4, suspicion", 1, repeat(4, dc...), sparse),
		two("d c, S=2, N=3, suspicion", 2, repeat(3, dc...), suspicion),
		two("d d c c, S=2, N=4, suspicion", 2, pairs(4, dc...), suspicion),
		two("d c c, S=1, N=3, suspicion", 1, repeat(3, dcc...), sparse),
		two("d, S=1, N=4, suspicion", 1, repeat(4, Dispatch), sparse),
		two("d, S=2, N=3, suspicion", 2, repeat(3, Dispatch), suspicion),
		two("d c, S=1, N=4, death", 1, repeat(4, dc...), death),
		two("d d c c, S=2, N=4, death", 2, pairs(4, dc...), with(death, func(m *Model) { m.Sparse = false })),
		two("d c, S=1, N=3, death and suspicion", 1, repeat(3, dc...), both),
		two("d c or release, S=1, N=3", 1, repeat(3, Dispatch, Maybe, Maybe), with(suspicion, mayRelease)),
		two("d c or release, S=2, N=3", 2, repeat(3, Dispatch, Maybe), with(suspicion, mayRelease)),
		two("cancelled, S=1, N=2", 1, then(repeat(1, Cancelled, Maybe), 1, 1), with(suspicion, mayRelease)),
		two("cancelled, S=1, N=3, nothing fails", 1, then(repeat(2, Cancelled, Maybe), 2, 1), Model{MayRelease: true}),
		two("cancelled, S=2, N=2, nothing fails", 2, then(repeat(1, Cancelled), 1, 2), Model{MayRelease: true}),
		three("d c, R=3, S=1, N=1, death", 1, repeat(1, dc...), Model{Deaths: 1, Targets: 1}),
		three("chain, R=3, S=1, N=1", 1, repeat(1, dc...), Model{Deaths: 1, Targets: 4, Patient: true}),
		two("d, then close, S=1", 1, append(repeat(2, Dispatch), Call{Close, 0}), Model{}),
		two("apart and d c in turn, S=1, N=4, nothing fails", 1, turns(2), Model{Sparse: true}),
		two("apart and d c in turn, S=2, N=4, nothing fails", 2, turns(2), Model{}),
		two("apart and d c in turn, S=1, N=4, suspicion", 1, turns(2), suspicion),
		two("apart and d c in turn, S=1, N=4, death", 1, turns(2), death),
		surviving("cancelled, nothing fails", 1, repeat(2, Cancelled, Maybe), Model{MayRelease: true}),
		surviving("d c", 1, repeat(2, dc...), Model{Suspicions: 1}),
		surviving("d c", 2, repeat(2, dc...), Model{Suspicions: 1}),
		rejoining(1, 1, Model{Suspicions: 1, Deaths: 1, Targets: 2}),
	}
}

func largeConfigurations() []*Model {
	updates := Model{MayRelease: true, Suspicions: 1}
	return []*Model{
		two("every step apart, d c, S=1, N=3, suspicion", 1, repeat(3, dc...), with(sparse, func(m *Model) { m.Fine = true })),
		two("d c, S=2, N=4, suspicion", 2, repeat(4, dc...), suspicion),
		two("hooks, S=2, N=4, suspicion", 2, pairs(4, srcc...), suspicion),
		two("d c c, S=2, N=3, suspicion", 2, repeat(3, dcc...), suspicion),
		two("d, S=2, N=4, suspicion", 2, repeat(4, Dispatch), suspicion),
		two("d d c c, S=2, N=2 and one more, any rows, suspicion", 2, then(pairs(2, dc...), 2, 1), sparse),
		two("d d c c, S=2, N=4, death and suspicion", 2, pairs(4, dc...), with(both, func(m *Model) { m.Sparse = false })),
		two("d c or release, S=1, N=3, any rows", 1, repeat(3, Dispatch, Maybe, Maybe), with(sparse, mayRelease)),
		two("cancelled, S=1, N=3", 1, then(repeat(2, Cancelled, Maybe), 2, 1), with(suspicion, mayRelease)),
		two("cancelled, S=2, N=3, nothing fails", 2, then(repeat(2, Cancelled, Maybe), 2, 1), Model{MayRelease: true}),
		surviving("cancelled", 1, repeat(2, Cancelled, Maybe), updates),
		rejoining(1, 2, Model{Suspicions: 1, Deaths: 1, Targets: 2}),
		rejoining(2, 2, Model{Suspicions: 1, Deaths: 1, Targets: 2}),
		three("chain, R=3, S=1, N=1, any target", 1, repeat(1, dc...), Model{Deaths: 1, Targets: 7, Patient: true}),
		three("d c, R=3, S=1, N=1, suspicion", 1, repeat(1, dc...), Model{Suspicions: 1}),
		three("d, R=3, S=1, N=2, nothing fails", 1, repeat(2, Dispatch), Model{}),
	}
}

func walks() []*Model {
	return []*Model{
		three("d d c c, R=3, S=2, N=4, one suspicion, one death", 2, pairs(4, dc...), Model{Suspicions: 1, Deaths: 1, Targets: 7, Sparse: true}),
		three("d c c, R=3, S=2, N=4, two suspicions", 2, repeat(4, dcc...), Model{Suspicions: 2, Sparse: true}),
		three("chain, R=3, S=2, N=4", 2, pairs(4, srcc...), Model{Deaths: 1, Targets: 7, Patient: true, Sparse: true}),
	}
}

type mutant struct {
	name     string
	mutation Mutation
	model    *Model
	walk     bool // find it on random walks: its states are too many
}

func mutants() []mutant {
	s1 := func() *Model { return two("d c, S=1, N=3", 1, repeat(3, dc...), sparse) }
	repeated := func() *Model { return two("d c c, S=1, N=2", 1, repeat(2, dcc...), Model{}) }
	maybe := func() *Model {
		return two("d c or release", 1, repeat(2, Dispatch, Maybe, Maybe), Model{MayRelease: true})
	}
	rejoin := func() *Model { return rejoining(1, 2, Model{Suspicions: 1, Deaths: 1, Targets: 2}) }
	cancel := func() *Model {
		return two("cancelled", 1, then(repeat(2, Cancelled, Maybe), 2, 1), with(suspicion, mayRelease))
	}
	chain := func() *Model {
		return three("chain", 1, repeat(1, dc...), Model{Deaths: 1, Targets: 4, Patient: true})
	}
	return []mutant{
		{"no poison", noPoison, s1(), false},
		{"poison decided by arrive", poisonByArrive, s1(), false},
		{"poison lifted by a done that is not final", poisonByAnyDone, two("dcc", 1, repeat(3, dcc...), sparse), false},
		{"members not read after the last row of y", noPostCheck, s1(), false},
		{"members not read before writing", noPreReduceCheck, s1(), false},
		{"members read before open instead of after", checkBeforeOpen, s1(), false},
		{"A read after open is set", membersAfterOpen, three("sent only, R=3", 1, repeat(2, Send), Model{Suspicions: 1, Suspects: 2, Other: []Call{{Send, 0}, {Close, 0}}}), true},
		{"counters zeroed after open", countersLate, s1(), false},
		{"done before the last read", doneBeforeRead, s1(), false},
		{"arrive before the rows", arriveFirst, s1(), false},
		{"layout handed out as a view of the slab", layoutView, s1(), false},
		{"opened without waiting for done", noDoneWait, s1(), false},
		{"opened by a done that is not final", anyDoneReopens, repeated(), false},
		{"the first done of a handle is final", finalAtOnce, repeated(), false},
		{"fenced by who is out itself", fenceFromOutside, s1(), false},
		{"fence takes the bit out whatever the word is", fenceBlindly, s1(), false},
		{"fence looks at the bit alone", fenceByBit, rejoin(), false},
		{"every check looks at the bit alone", bitAlone, rejoin(), false},
		{"the check before writing looks at the bit alone", bitBeforeWrite, rejoin(), false},
		{"an update does not apply the poison rule", noUpdatePoison, rejoin(), false},
		{"an update lifts poison", updateLiftsPoison, rejoin(), false},
		{"operation numbers begin again", restartOps, rejoin(), false},
		{"base not above opened operations", baseTooLow, rejoin(), false},
		{"no released bit", noReleasedBit, maybe(), false},
		{"y_ready without the number of combines", noCombineCount, maybe(), false},
		{"readers of the last combine ignored", ignoreReaders, repeated(), false},
		{"done compared with ==", doneEqual, two("d c c, S=1, N=2", 1, repeat(2, dcc...), Model{Sparse: true}), false},
		{"quiesced while a step still writes", quiescedTooEarly, s1(), false},
		{"an operation that was not combined is not released", notReleased, two("d", 1, repeat(2, Dispatch), Model{}), false},
		{"settle checks members before open", settleUnchecked, cancel(), false},
		{"settle does not write y_ready", settleNoYReady, two("cancelled", 1, then(repeat(2, Cancelled, Maybe), 2, 1), Model{MayRelease: true}), false},
		{"who prepares for an update does not leave", prepareStays, surviving("cancelled", 1, repeat(2, Cancelled, Maybe), Model{MayRelease: true}), false},
		{"an operation begins with ranks lost in an older epoch", sendsToOld, surviving("cancelled", 1, repeat(2, Cancelled, Maybe), Model{MayRelease: true, Suspicions: 1}), false},
		{"a mask defers nothing for its owners", maskDefersNothing, two("apart", 1, turns(1), Model{}), false},
		{"masked owners get words without a look at members", settleUnchecked, two("apart", 1, turns(2), suspicion), false},
		{"a refused combine does not look at members", refusedUnchecked, s1(), false},
		{"data of who has left is dropped", dropsData, two("d c, close", 1, append(repeat(2, Dispatch), Call{Close, 0}), Model{}), false},
		{"who is waited for is blamed", blameWaitedFor, chain(), false},
		{"a fence from any word", fenceAnyWord, chain(), false},
	}
}
