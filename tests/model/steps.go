package model

// Step names a step by the function of core/ep/cpu that makes it.
type Step uint8

const (
	stepOpenOwners Step = iota
	stepSendCheck
	stepReserve
	stepPlace
	stepPublish
	stepArrive
	stepReceived
	stepCancel
	stepCopyOutputs
	stepPublishOutputs
	stepOutputsReady
	stepNotCombined
	stepReduce
	stepReduceCheck
	stepFinishCombine
	stepReleaseAs
	stepReleaseDone
	stepReopen
	stepOpenSlot
	stepDropLost
	stepDropDead
	stepDropDeferred
	stepSettle
	stepSettleCheck
	stepSettlePublish
	stepSettleArrive
	stepSettleDone
	stepFenced
	stepDie
	stepFence
	stepFenceLook
	stepDeadline
	stepBlame
	stepExtend
	stepQuiesced
	stepLeave
	stepMeet
	stepPrepare
	stepInstall
	stepInstalled
)

var stepNames = [...]string{
	stepOpenOwners:     "openOwners: reads open of",
	stepSendCheck:      "send: reads members, serves itself",
	stepReserve:        "reserve: adds to the counter of",
	stepPlace:          "place: stores the row at",
	stepPublish:        "publish: writes layout at",
	stepArrive:         "publish: writes arrive at",
	stepReceived:       "received: reads counters and layout",
	stepCancel:         "Cancel",
	stepCopyOutputs:    "readers: none left; copyOutputs",
	stepPublishOutputs: "publishOutputs: sets y_ready",
	stepOutputsReady:   "outputsReady: all that are needed",
	stepNotCombined:    "outputsReady: released without it by",
	stepReduce:         "reduce: reads a row of y at",
	stepReduceCheck:    "reduce: reads members after the last row",
	stepFinishCombine:  "finishCombine: writes done at",
	stepReleaseAs:      "releaseAs: sets the released bit",
	stepReleaseDone:    "releaseAs: writes the final done at",
	stepReopen:         "reopen: nothing unfinished; openSlot reads members for slot",
	stepOpenSlot:       "openSlot: clean, sets open of slot",
	stepDropLost:       "dropLost: is out:",
	stepDropDead:       "dropLost: is out, and known to be dead:",
	stepDropDeferred:   "settle: is out:",
	stepSettle:         "settle: reads open of",
	stepSettleCheck:    "settle: reads members before writing at",
	stepSettlePublish:  "settle: publishes no rows at",
	stepSettleArrive:   "settle: writes arrive at",
	stepSettleDone:     "settle: writes the final done at",
	stepFenced:         "sees itself out; quiesceNow",
	stepDie:            "dies",
	stepFence:          "fence:",
	stepFenceLook:      "fence: looks at members before",
	stepDeadline:       "giveUp: its deadline passes",
	stepBlame:          "blame: follows waits_for to",
	stepExtend:         "blame: members changed, a fresh deadline",
	stepQuiesced:       "quiesceNow, too early",
	stepLeave:          "leave",
	stepMeet:           "comes to the rendezvous as a new process",
	stepPrepare:        "Prepare: ends its operations, quiesceNow, comes to the rendezvous",
	stepInstall:        "Install: compare-and-swap to the next epoch",
	stepInstalled:      "Install: begins the new epoch",
}
