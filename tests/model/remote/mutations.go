package remote

// Mutation is a broken rule. Each is a mistake that is easy to make.
type Mutation uint8

const (
	none Mutation = iota
	sendsBeforeOpen
	takesGoneRows
	oldEpochsCount
	cancelIsNew
	cancelReleases
	cancelIsNotSent
	doneBeforeRows
	arrivesFirst
	yBeforeOutputs
	yWithFirstPiece
	settleNoYReady
	outputsOnce
	noDoneWait
	countersStay
	noReleasedBit
	ignoreReaders
	fencesFromOldSet
	leavesAtOnce
	leavesBeforeQuiesced
)
