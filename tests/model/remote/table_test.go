package remote

var (
	dc  = []Kind{Dispatch, Combine}
	dcc = []Kind{Dispatch, Combine, Combine}
)

// two is a configuration of two ranks; room is that of a link, in messages.
func two(name string, slots, room int, program []Call, m Model) *Model {
	m.Name, m.Ranks, m.Slots, m.Capacity, m.Program = name, 2, slots, room, program
	return &m
}

func three(name string, slots, room int, program []Call, m Model) *Model {
	m.Name, m.Ranks, m.Slots, m.Capacity, m.Program = name, 3, slots, room, program
	return &m
}

// updating: both ranks come to an update, in the middle of what they do.
func updating(name string, program []Call, m Model) *Model {
	m.Again = repeat(1, dc...)
	return two("update, "+name, 1, 2, append(program, Call{Update, 0}), m)
}

func closing(program []Call) []Call { return append(program, Call{Close, 0}) }

var (
	suspicion = Model{Suspicions: 2}
	death     = Model{Deaths: 1, Targets: 1}
	cut       = Model{Cuts: 1}
)

func mayRelease(m Model) Model {
	m.MayRelease = true
	return m
}

func configurations() []*Model {
	return []*Model{
		two("d c, S=1, N=2, any rows, nothing fails", 1, 1, repeat(2, dc...), Model{Sparse: true}),
		two("d c, S=2, N=3, nothing fails", 2, 2, repeat(3, dc...), Model{}),
		two("d c c, S=1, N=1, nothing fails", 1, 2, repeat(1, dcc...), Model{}),
		two("cancelled, S=1, N=2, nothing fails", 1, 2, then(repeat(1, Cancelled, Maybe), 1, 1), Model{MayRelease: true}),
		two("d c, then close, S=1", 1, 2, closing(repeat(1, dc...)), Model{}),
		two("d c, S=1, N=2, suspicion", 1, 2, repeat(2, dc...), suspicion),
		two("d c c, S=1, N=2, suspicion", 1, 2, repeat(2, dcc...), suspicion),
		two("d c, S=2, N=3, death", 2, 2, repeat(3, dc...), death),
		two("d c, S=1, N=2, death", 1, 2, repeat(2, dc...), death),
		two("d c, S=1, N=2, a link fails", 1, 2, repeat(2, dc...), cut),
		two("cancelled, S=1, N=1, suspicion", 1, 1, repeat(1, Cancelled, Maybe), mayRelease(suspicion)),
		updating("d c", repeat(1, dc...), Model{Suspicions: 1}),
		updating("cancelled", repeat(1, Cancelled), Model{MayRelease: true}),
	}
}

func largeConfigurations() []*Model {
	return []*Model{
		two("cancelled, S=1, N=2, suspicion", 1, 2, then(repeat(1, Cancelled, Maybe), 1, 1), mayRelease(suspicion)),
		three("d, R=3, S=1, N=1, nothing fails", 1, 1, repeat(1, Dispatch), Model{}),
	}
}

func walks() []*Model {
	return []*Model{
		three("d c c, R=3, S=2, N=4, suspicion and death", 2, 2, repeat(4, dcc...), Model{Sparse: true, Suspicions: 1, Deaths: 1, Targets: 7}),
		three("cancelled, R=3, S=2, N=4, suspicion", 2, 3, then(repeat(2, Cancelled, Maybe), 2, 2), Model{Sparse: true, MayRelease: true, Suspicions: 2}),
		three("d c, R=3, S=2, N=4, a link fails", 2, 2, repeat(4, dc...), Model{Sparse: true, Cuts: 1}),
	}
}

type mutant struct {
	name     string
	mutation Mutation
	want     int // the property that it breaks
	model    *Model
}

func mutants() []mutant {
	plain := func() *Model { return two("d c, S=1, N=2", 1, 1, repeat(2, dc...), Model{}) }
	twice := func() *Model { return two("d c c, S=1, N=1", 1, 1, repeat(1, dcc...), Model{}) }
	cancelled := func() *Model {
		return two("cancelled", 1, 1, then(repeat(1, Cancelled, Maybe), 1, 1), Model{MayRelease: true})
	}
	oneCancels := func() *Model {
		return two("one cancels", 1, 1, repeat(2, dc...), Model{MayRelease: true, Other: then(repeat(1, Cancelled, Combine), 1, 1)})
	}
	lateCancels := func() *Model {
		other := append(repeat(1, dc...), Call{Cancelled, 1}, Call{Combine, 1})
		return two("one cancels the second", 1, 1, repeat(2, dc...), Model{MayRelease: true, Other: other})
	}
	suspected := func() *Model { return two("d c, suspicion", 1, 2, repeat(2, dc...), suspicion) }
	closes := func() *Model { return two("d c, close", 1, 2, closing(repeat(1, dc...)), Model{}) }
	updates := func() *Model { return updating("d c", repeat(1, dc...), Model{Suspicions: 1}) }
	return []mutant{
		{"rows are sent before the owner has opened", sendsBeforeOpen, stuck, plain()},
		{"rows come in behind a dispatch that went on without them", takesGoneRows, changedAfter, suspected()},
		{"operations begin again, and messages of an older epoch are taken", oldEpochsCount, changedAfter, updates()},
		{"who gives up between two messages begins anew", cancelIsNew, stuck, oneCancels()},
		{"places of who gave up are released", cancelReleases, wrongCount, cancelled()},
		{"a cancelled dispatch is not told", cancelIsNotSent, stuck, cancelled()},
		{"done is told before the operation without rows", doneBeforeRows, stuck, cancelled()},
		{"arrive with the first piece", arrivesFirst, wrongRows, plain()},
		{"y_ready is told before the outputs", yBeforeOutputs, wrongOutputs, plain()},
		{"y_ready with the first piece of outputs", yWithFirstPiece, wrongOutputs, plain()},
		{"who gives up before its slab is open does not say so", settleNoYReady, stuck, lateCancels()},
		{"outputs that were sent stand for those of the next combine", outputsOnce, stuck, twice()},
		{"opened without waiting for done", noDoneWait, stuck, plain()},
		{"counters stay", countersStay, overCapacity, plain()},
		{"no released bit", noReleasedBit, stuck, cancelled()},
		{"readers of the last combine ignored", ignoreReaders, wrongOutputs, twice()},
		{"a fence from an old set", fencesFromOldSet, emptySet, suspected()},
		{"who leaves does not wait until all is taken", leavesAtOnce, lostWithoutFault, closes()},
		{"quiesced is said behind the leave", leavesBeforeQuiesced, takenForLost, closes()},
	}
}
