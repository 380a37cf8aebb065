// Package model explores the protocol of core/ep/cpu for small numbers of ranks,
// slots and operations: every order in which the ranks' accesses to shared
// memory can interleave, with deaths, suspicions of live ranks and membership
// updates at every place. docs/model.md says what it shows, and what not.
//
// Each step is one function here and belongs to one of core/ep/cpu. Change both
// together.
//
//	model               core/ep/cpu
//	startDispatch       startDispatch
//	assign, active      assign (the members that the epoch began with, and fewer;
//	                    Apart: less those that the caller's mask leaves out)
//	openOwners          openOwners
//	send, looksIn       send: isMember between open and the first write
//	reserve             reserve
//	place               place
//	publish, arrive     publish: layout and params, then arrive
//	stepDispatch        stepDispatch
//	arrived             arrived, countArrivals
//	received            received
//	cancel              Pending.Cancel
//	startCombine, pick  startCombine, pick
//	reading             readers
//	copyOutputs         copyOutputs
//	publishOutputs      publishOutputs
//	outputsReady        outputsReady; notCombined is its error
//	reduce              reduce: the kernel's reads
//	afterReduce         reduce: isMember after the last read
//	finishCombine       finishCombine
//	releaseCombined     releaseCombined
//	release             releaseAs: the released bit
//	releaseDone         releaseAs: the final done words
//	deferWrites         deferWrites
//	settle, settleAt    settle, settleAt: open, isMember, then the words
//	progress            progress
//	unfinished          unfinished
//	reopen, openSlot    reopen, renew, openSlot
//	clean               clean
//	poisons             poison, peer.isQuiesced
//	replaceSlab         replaceSlab
//	dropFrom...         stepDispatch, stepCombine, reopen: what is masked by `out`
//	fence, mayFence     fence, membership.Fence
//	deadlines           lookAround: a deadline has passed
//	blame, blamed       blameStraggler, suspicion.Suspicion
//	fenced, stop        usable, expelled
//	quiesceNow          quiesceNow
//	leave               Close, leaveFor
//	prepare             Prepare: endAll
//	leaveToMeet         Prepare: leaveFor
//	install, firstOp    membership.Install, and the base that the rendezvous found
//	installed, awaitsDone Install: unready, reopenAll
//
// The checker keeps 128 bits of every state it has seen, or whole states. It
// visits states breadth first, so that a trace is as short as any.
package model
