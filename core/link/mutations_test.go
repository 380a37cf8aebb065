package link

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make with a link that breaks, each as an
// edit of one file, and the test that has to notice.
var mutations = []struct{ name, file, from, to, test string }{
	{"a peer takes back what it has released", "sender.go", "if released < s.acked.Load() || have", "if have", "TestReconnectWrongNumbers"},
	{"a peer has released what it does not have", "sender.go", "|| have < released ", "", "TestReconnectWrongNumbers"},
	{"a peer has what was not posted", "sender.go", " || have > s.posted.Load() {", " {", "TestReconnectWrongNumbers"},
	{"writes of before keep their memory", "sender.go", "\tfor i := range s.busy {", "\tfor i := range s.busy[:0] {", "TestReconnectForgetsWrites"},
	{"grants of before count", "sender.go", "\tclear(s.spans)\n", "", "TestReconnectForgetsGrants"},
	{"grants without a bound", "sender.go", " || at+num > s.posted.Load()-acked ||", " ||", "TestSC8"},
	{"grants for what is not posted", "sender.go", "at+num > s.posted.Load()-acked", "at+num > s.sent.Load()-acked", "TestReconnectWhileSending"},
	{"grants count twice", "sender.go", " || s.spans[(acked+at)%s.depth] != 0 {", " {", "TestSC8"},
	{"a double is filed during a release", "receiver.go", " || released+gap < r.seen ||", " ||", "TestDoubleWhileReleasing"},
	{"what came behind a gap stays", "receiver.go", "\t\t\tr.slots[i].Store(0)\n", "", "TestReconnectSeeds"},
	{"what came behind a gap counts", "receiver.go", "\t\t\tr.early[i] = false\n", "", "TestReconnectSeeds"},
	{"the poller forgets an endpoint too early", "attempt.go", "return poller.rounds.Load() != round", "return round >= 0", "TestReconnectDrains"},
	{"who posts is not waited for", "attempt.go", "return l.send.posting.CompareAndSwap(false, true)", "l.send.posting.Store(true); return true", "TestReconnectHolds"},
	{"a grant is not waited for", "attempt.go", "return l.recv.granting.CompareAndSwap(false, true)", "l.recv.granting.Store(true); return true", "TestReconnectHolds"},
	{"an offer of later is taken up", "attempt.go", "if theirs.number != number {", "if false {", "TestReconnectOvertaken"},
	{"grants begin where they were", "attempt.go", "\tl.recv.granted.Store(released)\n", "", "TestReconnectAtEveryPoint"},
	{"what an old endpoint says breaks the link", "reconnect.go", "l.Err() != nil || !isPresent() {", "l.Err() != nil {", "TestLateErrors"},
	{"the peer is not followed", "ways.go", "case l.peerWay() > l.at:", "case false:", "TestGoesOverSeeds"},
	{"a carrier has all the time", "ways.go", "case !time.Now().Before(m.share):", "case false:", "TestGoesOverInTime"},
	{"a device that has failed is waited for", "ways.go", "\t\tm.down = cause\n", "", "TestGoesOverAtOnce"},
	{"connections that lead to nothing go on", "ways.go", "case m.failed >= m.cfg.Tries:", "case false:", "TestGoesOverAtOnce"},
	{"rings are named as before", "ways.go", "\tl.enter()\n\tl.startClock(until)\n", "\tl.startClock(until)\n", "TestGoesOverAtOnce"},
	{"one side goes over alone", "ways.go", "l.reconnector.peerCan && ", "", "TestGoesOverOnlyTogether"},
	{"a carrier that has failed takes over", "ways.go", " && w.poller.Failed() == nil", "", "TestGoesOverToNoneThatFailed"},
	{"two carriers' endpoints are mixed up", "reconnect.go", "return l.ep == on", "return l.ep.ID() == on.ID()", "TestGoesOverOnce"},
	{"an offer for the carrier that was left counts", "attempt.go", " && l.peerWay() >= l.at", "", "TestGoesOverSeeds"},
	{"an offer that cannot be read is for another carrier", "ways.go", "\treturn l.at\n}", "\treturn len(l.ways)\n}", "TestUnreadableOffer"},
	{"what later offers say of the standby is lost", "attempt.go", "\tl.setPeer(&o)\n", "", "TestStandbyFailsLater"},
	{"the number of a message is lost", "attempt.go", "have := l.recv.forget()", "have := max(l.recv.forget(), 1) - 1", "TestGoesOverSeeds"},
	{"a listener forgets hellos", "accept.go", "Guard: c.guard,", "Guard: func() *wire.Guard { g, _ := wire.NewGuard(0); return g }(),", "TestRecordedHandshake"},
}

// TestMutations builds this package with each mistake in turn, and wants a test to
// notice. It takes half a minute: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	var list []testenv.Mutation
	for _, m := range mutations {
		list = append(list, testenv.Mutation{
			Name: m.name, File: m.file, From: m.from, To: m.to,
			Args: []string{"-timeout=100s", "-run", "^" + m.test + "$"}, Env: []string{"MOEWIRE_TEST_SEED=1"},
		})
	}
	testenv.RunMutations(t, list)
}
