package model

// Mutation is a broken rule. Each is a mistake that is easy to make.
type Mutation uint8

const (
	none Mutation = iota
	noPoison
	poisonByArrive
	poisonByAnyDone
	noPostCheck
	noPreReduceCheck
	checkBeforeOpen
	membersAfterOpen
	countersLate
	doneBeforeRead
	arriveFirst
	layoutView
	noDoneWait
	anyDoneReopens
	finalAtOnce
	fenceFromOutside
	fenceBlindly
	fenceByBit
	bitAlone
	bitBeforeWrite
	noUpdatePoison
	updateLiftsPoison
	restartOps
	baseTooLow
	noReleasedBit
	noCombineCount
	ignoreReaders
	doneEqual
	quiescedTooEarly
	notReleased
	settleUnchecked
	settleNoYReady
	blameWaitedFor
	fenceAnyWord
	dropsData
	prepareStays
	sendsToOld
	refusedUnchecked
	maskDefersNothing
)
