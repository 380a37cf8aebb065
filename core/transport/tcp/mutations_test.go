package tcp

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make, each as an edit of one file,
// and the test that has to notice.
var mutations = []struct{ name, file, from, to, test string }{
	{"a payload is not checked", "payload.go", "return x.digest.Check()", "return nil", "TestAlteredPayload"},
	{
		"bounds that go round", "region.go", "off > size || n > size-off", "off+n > size",
		"TestConformance/digest/RemoteRefuses",
	},
	{"a key without its random part", "region.go", "r.key != key || ", "", "TestConformance/digest/RemoteRefuses"},
	{"access is not checked", "region.go", " || r.access&access == 0", "", "TestConformance/digest/RemoteRefuses"},
	{
		"a region is written after its end", "receiver.go", "x.drop = x.region.closed", "x.drop = false",
		"TestRegionClosedWhileLanding",
	},
	{"sends without credit", "outgoing.go", "if o.used == o.credit {", "if false {", "TestConformance/digest/NoReceive"},
	{"any credit is believed", "outgoing.go", "m.credit > o.used+o.maxCredit", "false", "TestNonsense"},
	{"any acknowledgement is believed", "outgoing.go", "m.ack > o.next ||", "", "TestNonsense"},
	{"one receive is used twice", "incoming.go", "|| in.at(m.recv).busy", "", "TestNonsense"},
	{"complete with the first segment", "incoming.go", "if op.left != 0 {", "if false {", "TestOperationsMoveBytes/many"},
	{
		"what nobody has polled is not outstanding", "outgoing.go", "+ep.unpolledSends.Load() >=", ">=",
		"TestUnpolled",
	},
	{"any number of pending connections", "../../internal/accept/accept.go", "len(p.list) == p.max", "false", "TestPendingConnections"},
	{"pending connections stay for ever", "../../internal/accept/accept.go", "!now.Before(p.list[0].until)", "false", "TestWF1Unauthenticated"},
	{"an unauthenticated peer is believed before the confirmation", "listener.go", "if !g.shake.Done() {", "if false {", "TestWF1Unauthenticated"},
	{"no look before sleeping", "standby.go", "\tif t.isDue(s) {\n\t\td = 0", "\tif false {\n\t\td = 0", "TestSleepLooks"},
	{"who spins looks at the sockets alone", "spin.go", "t.isDue(s) || ", "", "TestSpin"},
	{"who spins looks at no socket", "spin.go", " || t.poller.IsReady()", "", "TestSpin"},
	{"spins for ever", "spin.go", "time.Since(begin) < bound", "true", "TestSpin"},
	{"always spins", "standby.go", "s.spins && t.spin", "t.spin", "TestSpinsOnlyAfterAShortWait"},
	{"an acknowledgement wakes nobody", "carry.go", "if completed {", "if false {", "TestAcknowledgementEnds"},
	{"a request that waits for a receive wakes nobody", "end.go", "ep.t.interrupt() // its time", "// its time", "TestNoReceiveEnds"},
	{"segments overlap", "incoming.go", "op.unasked -= n", "_ = n", "TestAnnouncedTwice"},
	{"answers overlap", "outgoing.go", "op.asked += n", "_ = n", "TestAnnouncedTwice"},
	{"sockets that do not belong together", "connect.go", "p.fd == nil || !p.join.sameAs(first)", "p.join.num < 0", "TestParkedSockets"},
	{"an older attempt ends a newer one", "connect.go", "j.attempt < m.attempt", "false", "TestSocketsOfTwoAttempts"},
	{"sockets of two attempts", "connect.go", " || j.attempt != m.attempt", "", "TestSocketsOfTwoAttempts"},
	{"sockets of two peers", "connect.go", "case m.from != j.from || ", "case ", "TestAnotherPeerReplaces"},
	{"a connection that ends is the end", "dial.go", "if !errors.Is(e, errNotTaken) {", "if true {", "TestConnectAgain"},
	{"only one socket is looked at", "dial.go", "fds[i] = set[i].fd", "fds[i] = set[0].fd", "TestConnectAgain"},
	{"a broken welcome is the end", "connect.go", "if broken = ep.welcome(set); broken == nil {", "if broken = ep.welcome(set); true {", "TestAcceptsAgain"},
	{"who waits for another is dialled for ever", "listener.go", "|| !ep.waitsFor(j.from)", "", "TestConnectEndsWhere"},
	{"Close does not end a Wait", "transport.go", "t.interrupt() // a Wait ends", "", "TestCloseEndsWait"},
	{"a refusal waits for the next event", "carry.go", "ep.hasWork.Store(true) // the first", "// the first", "TestRefusalOfAnotherSocket"},
	{"waits for more than comes", "receiver.go", "least = min(x.left, leastBytes)", "least = leastBytes", "TestOperationsMoveBytes/digest"},
	{"complete while the kernel reads", "outgoing.go", "if op.pins > 0 {", "if false {", "TestCO4Kernel"},
	{"flushed while the kernel reads", "end.go", "&& o.at(o.head).pins == 0", "", "TestCO4Kernel"},
	{"closed with notices to come", "pinned.go", "if c.pin.first != c.pin.next {\n\t\treturn false", "if false {\n\t\treturn false", "TestCO4Kernel"},
	{"the connection goes on while its bytes are pinned", "pinned.go", "_ = sys.AbortTCP(c.fd)", "_ = c", "TestRetireTakes"},
	{"pinned although the kernel copies", "pinned.go", "p.on = p.on && !p.auto", "_ = p", "TestAutoStops"},
	{"any number of pinned calls", "pinned.go", "if p.next-p.first < numPinned {", "if true {", "TestTooManyPinned"},
	{"a busy peer starves the others", "transport.go", "if t.skipped < maxSkipped {", "{", "TestBusyPeer"},
	{"memory is in use after the end", "end.go", "\t\tep.closeConns()", "\t\t_ = 0", "TestRetiredWhile"},
}

// quick are those that always run.
var quick = map[string]bool{
	"a payload is not checked": true, "segments overlap": true, "memory is in use after the end": true,
}

// TestMutations builds this package with each mistake in turn, and wants a test to
// notice. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	var list []testenv.Mutation
	for _, m := range mutations {
		list = append(list, testenv.Mutation{
			Name: m.name, File: m.file, From: m.from, To: m.to,
			Args:    []string{"-timeout=100s", "-run", m.test},
			Noticed: "--- FAIL|panic: ", Quick: quick[m.name],
		})
	}
	testenv.RunMutations(t, list)
}
