package cpu_test

import (
	"testing"

	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/testenv"
)

// hostPlacements are the ways in which groups are put on hosts.
var hostPlacements = []struct {
	name string
	tiny bool // messages that hold few rows
	of   func(ranks int) inproc.Hosts
}{
	{"apart", false, func(n int) inproc.Hosts {
		return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r }), MaxMessageBytes: 1 << 20}
	}},
	{"pairs", true, func(n int) inproc.Hosts {
		return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r / 2 }), NumMessages: 2, MaxMessageBytes: 2 << 10, MaxDelay: 3, DelaySeed: 5}
	}},
	{"one away", true, func(n int) inproc.Hosts {
		return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r / (n - 1) }), NumMessages: 1, MaxMessageBytes: 1 << 10}
	}},
}

func hostsOf(n int, of func(rank int) int) []int {
	hosts := make([]int, n)
	for r := range hosts {
		if n > 1 {
			hosts[r] = of(r)
		}
	}
	return hosts
}

// TestRemote runs the tests that hold for every group on groups over several hosts.
func TestRemote(t *testing.T) {
	testenv.InTest(t)
	for i, placement := range hostPlacements {
		if testing.Short() && i > 0 {
			continue // each is as long
		}
		t.Run(placement.name, func(t *testing.T) {
			overHosts = placement.of
			t.Cleanup(func() { overHosts = nil })
			for _, one := range remoteTests {
				if raceEnabled && testing.Short() && !one.races {
					continue
				}
				if !one.long || !placement.tiny {
					t.Run(one.name, one.f)
				}
			}
		})
	}
}

var remoteTests = []struct {
	name  string
	f     func(*testing.T)
	long  bool // has rows that do not fit in tiny messages
	races bool // ranks come, leave, are lost and give up: a case for the race detector
}{
	{"Exchange", TestExchange, false, true},
	{"FlatExchange", TestFlatExchange, false, true},
	{"DeterministicOrder", TestDeterministicOrder, false, false},
	{"FP32Exchange", TestFP32Exchange, false, false},
	{"Interleavings", TestInterleavings, false, true},
	{"PreReduceExchange", TestPreReduceExchange, false, true},
	{"PreReduceInterleavings", TestPreReduceInterleavings, false, false},
	{"PreReduceManySelections", TestPreReduceManySelections, true, false},
	{"PreReduceMasks", TestPreReduceMasks, false, false},
	{"BadPreReduceDispatch", TestBadPreReduceDispatch, false, false},
	{"BadPreReduceCombine", TestBadPreReduceCombine, false, false},
	{"SameBitsForEveryR", TestSameBitsForEveryR, false, false},
	{"Deadline", TestDeadline, false, true},
	{"Death", TestDeath, false, true},
	{"Leaver", TestLeaver, false, true},
	{"CloseEndsWaits", TestCloseEndsWaits, false, true},
	{"ReleasedWithoutCombine", TestReleasedWithoutCombine, false, false},
	{"Cancel", TestCancel, false, true},
	{"Hooks", TestHooks, false, false},
	{"CallerMask", TestCallerMask, false, false},
	{"CombineBufferGivesUp", TestCombineBufferGivesUp, false, false},
	{"Rejoin", TestRejoin, false, true},
	{"FencedRankReturns", TestFencedRankReturns, false, true},
	{"Scale", TestScale, false, false},
	{"UpdateEndsCalls", TestUpdateEndsCalls, false, true},
	{"FlatRejoin", TestFlatRejoin, false, false},
	{"FlatDeathWhileWaiting", TestFlatDeathWhileWaiting, false, true},
	{"FlatDeathInCombine", TestFlatDeathInCombine, false, true},
	{"FlatMask", TestFlatMask, false, false},
	{"FlatCancel", TestFlatCancel, false, false},
	{"FlatMismatch", TestFlatMismatch, true, false},
	{"FlatStats", TestFlatStats, false, false},
	{"DeterministicOrderWithLosses", TestDeterministicOrderWithLosses, false, true},
	{"OrderOfDifferentShapes", TestOrderOfDifferentShapes, false, false},
	{"DeferredIsBounded", TestDeferredIsBounded, false, true},
	{"OneCallPays", TestOneCallPays, false, false},
	{"HolderOfTheSlab", TestHolderOfTheSlab, false, false},
	{"OthersErrorsStayTheirs", TestOthersErrorsStayTheirs, false, false},
	{"FillAfterOverlap", TestFillAfterOverlap, false, false},
	{"Outcomes", TestOutcomes, false, false},
	{"SlowAndLost", TestSlowAndLost, false, false},
	{"SlowReader", TestSlowReader, false, false},
	{"TakenSlot", TestTakenSlot, false, false},
	{"CancelOnlyOwn", TestCancelOnlyOwn, false, false},
	{"ThreadsCombineOneHandle", TestThreadsCombineOneHandle, false, false},
	{"ThreadsKeepPromises", TestThreadsKeepPromises, false, false},
	{"SlicesBound", TestSlicesBound, false, false},
	{"InputsAfterSent", TestInputsAfterSent, false, false},
	{"StaleHandles", TestStaleHandles, false, false},
	{"Disagreement", TestDisagreement, true, false},
	{"UnevenSlots", TestUnevenSlots, false, false},
	{"Closed", TestClosed, false, false},
	{"FP32Counters", TestFP32Counters, false, false},
	{"FencedAnywhere", TestFencedAnywhere, false, false},
	{"FencedAnywhereFlat", TestFencedAnywhereFlat, false, false},
	{"Spares", TestSpares, false, false},
	{"BadDispatch", TestBadDispatch, false, false},
	{"BadCombine", TestBadCombine, false, false},
}
