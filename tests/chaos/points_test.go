package chaos

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moewire/moewire/core/ep/layout"
)

// point is a named place at which a fault can strike a rank.
type point int

// Places in a call come first, then those of a rendezvous, then those between
// calls. A word has two: in the rank's own memory, and in a peer's.
const (
	atMembers point = iota
	atWake
	atSleep // about to sleep
	atSlept
	atYield
	atSlab
	atAddSlab
	atPlace  // half of the rows are placed
	atReduce // half of the tokens are reduced
	atCopy   // half of the outputs are copied
	atOpen
	atOpenPeer
	atYReady
	atYReadyPeer
	atWaitsFor
	atWaitsForPeer
	atBeat
	atBeatPeer
	atSince
	atSincePeer
	atQuiesced
	atQuiescedPeer
	atParams
	atParamsPeer
	atArrive
	atArrivePeer
	atDone
	atDonePeer
	atCounter
	atCounterPeer
	atLayout
	atLayoutPeer
	atBytes
	atBytesPeer

	atReserve // a message for a remote rank
	atPost
	atPosted
	atNext // one from a remote rank has come
	atRelease
	atUntaken // before leaving
	atAsk     // before others are taken out
	atAsked
	atBallot // some time after that
	atSend   // work requests of a link
	atSent
	atRepost
	atCompleted

	atPrepare
	atPrepared
	atListening
	atConnecting // some time after it has begun
	atLink       // before a link is connected
	atLinked
	atConnected
	atInstall
	atCommit
	atCommitted
	atInstalled

	atBetween   // two operations
	atComputing // experts
	atSignal    // wherever a signal from outside hits
	numPoints
)

var pointNames = strings.Fields(`members wake sleep slept yield slab add_slab place reduce copy
	open open-peer y_ready y_ready-peer waits_for waits_for-peer beat beat-peer since since-peer quiesced quiesced-peer
	params params-peer arrive arrive-peer done done-peer counter counter-peer layout layout-peer bytes bytes-peer
	reserve post posted next release untaken ask asked ballot send sent repost completed
	prepare prepared listening connecting link linked connected install commit committed installed
	between computing signal`)

func (p point) String() string { return pointNames[p] }

// inCall reports whether the point lies in a call of the library.
func (p point) inCall() bool { return p < atBetween }

// ofProcess reports whether the point is passed by goroutines that do not take
// the rank's steps: to delay one of these says nothing of the rank.
func (p point) ofProcess() bool {
	return p >= atBallot && p <= atCompleted || p >= atConnecting && p <= atLinked
}

// common are the points in calls that healthy operations pass soon, where all
// share memory.
var common = []point{
	atMembers, atWake, atSleep, atSlept, atYield, atPlace, atReduce, atCopy, atOpen, atOpenPeer,
	atYReady, atYReadyPeer, atWaitsFor, atBeat, atSince, atParams, atParamsPeer, atArrive, atArrivePeer,
	atDone, atDonePeer, atCounter, atCounterPeer, atLayout, atLayoutPeer, atBytes, atBytesPeer, atSlab,
}

// ofMessages are those that only ranks pass which have remote ones.
var ofMessages = []point{atReserve, atPost, atPosted, atNext, atRelease, atSend, atSent, atRepost, atCompleted}

// ofMemory are those that only ranks pass which have local ones.
var ofMemory = []point{atSlab, atParamsPeer, atArrivePeer, atCounterPeer, atLayoutPeer}

// common are the points in calls that healthy operations of a group pass soon.
func (g *group) common() []point {
	switch g.place {
	case allRemote: // messages are most of what there is
		points := slices.DeleteFunc(slices.Clone(common), func(p point) bool { return slices.Contains(ofMemory, p) })
		return append(append(points, ofMessages...), ofMessages...)
	case split:
		return append(slices.Clone(common), ofMessages...)
	}
	return common
}

// inSuspicions adds those of ballots.
func (g *group) inSuspicions() []point {
	if g.place == allLocal {
		return inSuspicions
	}
	return append([]point{atAsk, atAsked, atBallot, atBallot, atBallot, atCompleted}, inSuspicions...)
}

// inRendezvous adds those of links.
func (g *group) inRendezvous() []point {
	if g.place == allLocal {
		return inRendezvous
	}
	return append([]point{atLink, atLinked, atRepost, atUntaken}, inRendezvous...)
}

// inSuspicions are those that ranks pass when they lose another one: they find out which
// rank it is, and keep what it may still write into.
var inSuspicions = []point{atBeatPeer, atBeatPeer, atWaitsForPeer, atWaitsForPeer, atSincePeer, atQuiescedPeer, atAddSlab, atMembers}

// inRendezvous are those that an update of the membership passes.
var inRendezvous = []point{
	atPrepare, atPrepared, atListening, atConnecting, atConnected, atInstall, atCommit, atCommitted, atInstalled, atQuiesced,
}

// controlPoint names a word of a control page.
func controlPoint(off int64) point {
	switch off {
	case layout.WaitsFor():
		return atWaitsFor
	case layout.Beat():
		return atBeat
	case layout.Since():
		return atSince
	case layout.Quiesced():
		return atQuiesced
	}
	if off < layout.YReady(0) {
		return atOpen
	}
	return atYReady
}

// slabPoint names a word of a slab.
func slabPoint(off int64) point {
	switch {
	case off < layout.Arrive(0):
		return atParams
	case off < layout.Done(0):
		return atArrive
	case off < layout.Counter(0):
		return atDone
	case off < layout.HeaderBytes:
		return atCounter
	}
	return atLayout
}

// faultCounts counts faults by point and kind.
type faultCounts map[point]map[string]int

func (t faultCounts) add(p point, kind string) {
	if t[p] == nil {
		t[p] = map[string]int{}
	}
	t[p][kind]++
}

// inCalls returns how many faults struck in a call, and how many in all.
func (t faultCounts) inCalls() (in, all int) {
	for p, kinds := range t {
		for _, n := range kinds {
			all += n
			if p.inCall() {
				in += n
			}
		}
	}
	return in, all
}

func (t faultCounts) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-16s", "point")
	for _, k := range kinds {
		fmt.Fprintf(&b, "%12s", k)
	}
	for p := range numPoints {
		if t[p] == nil {
			continue
		}
		fmt.Fprintf(&b, "\n%-16s", p)
		for _, k := range kinds {
			fmt.Fprintf(&b, "%12d", t[p][k])
		}
	}
	return b.String()
}
