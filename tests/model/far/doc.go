// Package far explores the protocol of core/ep between ranks that are all far
// from one another, for small numbers of ranks, slots, operations and messages:
// docs/model.md says what it shows, and what not.
//
// A far rank's memory is its own, and what happens to it happens under its
// Buffer.mu. So a step here is as long as one of core/ep under that lock; what
// interleaves is messages, and what ranks know of the member set. Change both
// together:
//
//	model               core/ep
//	room, post          lend, post
//	receive             receive, takeMessage
//	takeRows, goneOn    takeRows, goneOn
//	fanOut, finishRows  takePlaces, storeRows; finishRows
//	takeWords           takeWords, owesOutputs, takeDone
//	takeOutputs         takeOutputs
//	flush               flush
//	sendOutputs         sendOutputs
//	sendWords           sendWords
//	sendRows            lendFar, sendFar
//	reopen, open        reopen, clean, openSlot
//	settleAt            settleAt, settleFar
//	assign              startDispatch, assign
//	stepDispatch        stepDispatch, countArrivals, received
//	cancel, release     Pending.Cancel, releaseAs
//	stepCombine         stepCombine: readers, publishOutputs, outputsReady, reduce
//	fence               fence, accuse: what membership.Expel asks for, agreed on
//	learn               the page of the rank's host shows the next set
//	fenced, stop        expelled, endAll
//	seenOff, leave      seenOff, leaveFor
//	meeting, install    a meeting; Install
package far
