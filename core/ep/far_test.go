package ep_test

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport/inproc"
)

// spreads are the ways in which groups are put on hosts.
var spreads = []struct {
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

// TestFar runs what holds for every group on groups over several hosts.
func TestFar(t *testing.T) {
	testenv.InTest(t)
	for i, spread := range spreads {
		if testing.Short() && i > 0 {
			continue // each is as long
		}
		t.Run(spread.name, func(t *testing.T) {
			overHosts = spread.of
			t.Cleanup(func() { overHosts = nil })
			for _, one := range farTests {
				if !one.long || !spread.tiny {
					t.Run(one.name, one.f)
				}
			}
		})
	}
}

var farTests = []struct {
	name string
	f    func(*testing.T)
	long bool // has rows that do not fit in tiny messages
}{
	{"Exchange", TestExchange, false},
	{"FlatExchange", TestFlatExchange, false},
	{"DeterministicOrder", TestDeterministicOrder, false},
	{"WideExchange", TestWideExchange, false},
	{"Interleavings", TestInterleavings, false},
	{"PreExchange", TestPreExchange, false},
	{"PreInterleavings", TestPreInterleavings, false},
	{"PreManySelections", TestPreManySelections, true},
	{"PreMasks", TestPreMasks, false},
	{"BadPreDispatch", TestBadPreDispatch, false},
	{"BadPreCombine", TestBadPreCombine, false},
	{"SameBitsForEveryR", TestSameBitsForEveryR, false},
	{"Deadline", TestDeadline, false},
	{"Death", TestDeath, false},
	{"Leaver", TestLeaver, false},
	{"CloseEndsWaits", TestCloseEndsWaits, false},
	{"ReleasedWithoutCombine", TestReleasedWithoutCombine, false},
	{"Cancel", TestCancel, false},
	{"Hooks", TestHooks, false},
	{"CallerMask", TestCallerMask, false},
	{"CombineBufferGivesUp", TestCombineBufferGivesUp, false},
	{"Rejoin", TestRejoin, false},
	{"FencedRankReturns", TestFencedRankReturns, false},
	{"Scale", TestScale, false},
	{"UpdateEndsCalls", TestUpdateEndsCalls, false},
	{"FlatRejoin", TestFlatRejoin, false},
	{"FlatDeathWhileWaiting", TestFlatDeathWhileWaiting, false},
	{"FlatDeathInCombine", TestFlatDeathInCombine, false},
	{"FlatMask", TestFlatMask, false},
	{"FlatCancel", TestFlatCancel, false},
	{"FlatMismatch", TestFlatMismatch, true},
	{"FlatStats", TestFlatStats, false},
	{"DeterministicOrderWithLosses", TestDeterministicOrderWithLosses, false},
	{"OrderOfDifferentShapes", TestOrderOfDifferentShapes, false},
	{"OwedIsBounded", TestOwedIsBounded, false},
	{"OneCallPays", TestOneCallPays, false},
	{"HolderOfTheSlab", TestHolderOfTheSlab, false},
	{"OthersErrorsStayTheirs", TestOthersErrorsStayTheirs, false},
	{"FillAfterOverlap", TestFillAfterOverlap, false},
	{"Outcomes", TestOutcomes, false},
	{"SlowAndLost", TestSlowAndLost, false},
	{"SlowReader", TestSlowReader, false},
	{"TakenSlot", TestTakenSlot, false},
	{"CancelOnlyOwn", TestCancelOnlyOwn, false},
	{"ThreadsCombineOneHandle", TestThreadsCombineOneHandle, false},
	{"ThreadsKeepPromises", TestThreadsKeepPromises, false},
	{"SlicesBound", TestSlicesBound, false},
	{"InputsAfterSent", TestInputsAfterSent, false},
	{"StaleHandles", TestStaleHandles, false},
	{"Disagreement", TestDisagreement, true},
	{"UnevenSlots", TestUnevenSlots, false},
	{"Closed", TestClosed, false},
	{"WideCounters", TestWideCounters, false},
	{"FencedAnywhere", TestFencedAnywhere, false},
	{"FencedAnywhereFlat", TestFencedAnywhereFlat, false},
	{"Spares", TestSpares, false},
	{"BadDispatch", TestBadDispatch, false},
	{"BadCombine", TestBadCombine, false},
}
