package model

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

// then appends whole operations after the n first ones.
func then(program []Call, n, more int) []Call {
	for i := range more {
		program = append(program, Call{Dispatch, uint8(n + i)}, Call{Combine, uint8(n + i)})
	}
	return program
}

// rejoining: rank 1 makes more operations than rank 0 before its update.
func rejoining(before, after int, m Model) *Model {
	m.Name, m.Ranks, m.Slots = "rejoin", 2, 1
	m.Program = append(repeat(before, dc...), Call{Update, 0})
	m.Other = repeat(before+1, dc...)
	m.Rejoin = repeat(after, dc...)
	return &m
}

// faults of the configurations: suspicion of live ranks, and a death.
var (
	suspicion = Model{Suspicions: 2}
	sparse    = Model{Suspicions: 2, Sparse: true}
	death     = Model{Deaths: 1, Victims: 1, Sparse: true}
	both      = Model{Suspicions: 1, Deaths: 1, Victims: 1, Sparse: true}
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
		two("d c or release, S=1, N=3", 1, repeat(3, Dispatch, Maybe, Maybe), with(sparse, mayRelease)),
		two("d c or release, S=2, N=3", 2, repeat(3, Dispatch, Maybe), with(suspicion, mayRelease)),
		two("cancelled, S=1, N=3", 1, then(repeat(2, Cancelled, Maybe), 2, 1), with(suspicion, mayRelease)),
		two("cancelled, S=2, N=2, nothing fails", 2, then(repeat(1, Cancelled), 1, 2), Model{MayRelease: true}),
		three("d c, R=3, S=1, N=1, death", 1, repeat(1, dc...), Model{Deaths: 1, Victims: 1}),
		three("chain, R=3, S=1, N=1", 1, repeat(1, dc...), Model{Deaths: 1, Victims: 7, Patient: true}),
		rejoining(1, 1, Model{Suspicions: 1, Deaths: 1, Victims: 2}),
	}
}

func largeConfigurations() []*Model {
	return nil
}

type mutant struct {
	name     string
	mutation Mutation
	model    *Model
}

func mutants() []mutant {
	s1 := func() *Model { return two("d c, S=1, N=3", 1, repeat(3, dc...), sparse) }
	repeated := func() *Model { return two("d c c, S=1, N=2", 1, repeat(2, dcc...), Model{}) }
	maybe := func() *Model {
		return two("d c or release", 1, repeat(2, Dispatch, Maybe, Maybe), Model{MayRelease: true})
	}
	rejoin := func() *Model { return rejoining(1, 2, Model{Suspicions: 1, Deaths: 1, Victims: 2}) }
	cancel := func() *Model {
		return two("cancelled", 1, then(repeat(2, Cancelled, Maybe), 2, 1), with(suspicion, mayRelease))
	}
	return []mutant{
		{"no poison", noPoison, s1()},
		{"poison decided by arrive", poisonByArrive, s1()},
		{"poison lifted by a done that is not final", poisonByAnyDone, two("dcc", 1, repeat(3, dcc...), sparse)},
		{"members not read after the last row of y", noPostCheck, s1()},
		{"members not read before writing", noPreCheck, s1()},
		{"members read before open instead of after", checkBeforeOpen, s1()},
		{"A read after open is set", membersAfterOpen, three("d, R=3, sent only", 1, repeat(2, Send), Model{Suspicions: 1})},
		{"counters zeroed after open", countersLate, s1()},
		{"done before the last read", doneBeforeRead, s1()},
		{"arrive before the rows", arriveFirst, s1()},
		{"layout handed out as a view of the slab", layoutView, s1()},
		{"opened without waiting for done", noDoneWait, s1()},
		{"opened by a done that is not final", anyDoneReopens, repeated()},
		{"the first done of a handle is final", finalAtOnce, repeated()},
		{"fenced by who is out itself", fenceFromOutside, s1()},
		{"fence takes the bit out whatever the word is", fenceBlindly, s1()},
		{"fence looks at the bit alone", fenceByBit, rejoin()},
		{"every check looks at the bit alone", bitAlone, rejoin()},
		{"the check before writing looks at the bit alone", bitBeforeWrite, rejoin()},
		{"an update does not apply the poison rule", noUpdatePoison, rejoin()},
		{"an update lifts poison", updateLiftsPoison, rejoin()},
		{"operation numbers begin again", restartOps, rejoin()},
		{"base not above opened operations", baseTooLow, rejoin()},
		{"no released bit", noReleasedBit, maybe()},
		{"y_ready without the number of combines", noCombineCount, maybe()},
		{"readers of the last combine ignored", ignoreReaders, repeated()},
		{"done compared with ==", doneEqual, two("d c c, S=1, N=2", 1, repeat(2, dcc...), Model{Sparse: true})},
		{"quiet while a step still writes", quietTooEarly, s1()},
		{"an operation that was not combined is not released", neverReleases, two("d", 1, repeat(2, Dispatch), Model{})},
		{"settle checks members before open", settleUnchecked, cancel()},
		{"settle does not write y_ready", settleNoYReady, two("cancelled", 1, then(repeat(2, Cancelled, Maybe), 2, 1), Model{MayRelease: true})},
		{"data of who has left is dropped", dropsData, two("d c, close", 1, append(repeat(2, dc...), Call{Close, 0}), Model{})},
		{"who is waited for is blamed", blameWaitedFor, three("chain", 1, repeat(1, dc...), Model{Deaths: 1, Victims: 7, Patient: true})},
		{"a fence from any word", fenceAnyWord, three("chain", 1, repeat(1, dc...), Model{Deaths: 1, Victims: 7, Patient: true})},
	}
}
