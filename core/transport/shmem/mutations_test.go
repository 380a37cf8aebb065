package shmem

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make, each as an edit of one file,
// and the test that has to notice.
var mutations = []struct{ name, file, from, to, test string }{
	{"one byte too far", "peer.go", "off > size || uint64(n) > size-off", "off > size || uint64(n) > size-off+1", "TestConformance/default/RemoteRefuses"},
	{"bounds that go round", "peer.go", "off > size || uint64(n) > size-off", "off+uint64(n) > size", "TestConformance/default/RemoteRefuses"},
	{"access is not checked", "peer.go", "access&uint64(need) == 0", "access&uint64(need) == 99", "TestConformance/default/RemoteRefuses"},
	{"the address does not count", "peer.go", "off += at.Addr - begin", "_ = at.Addr", "TestConformance/default/RemoteRefuses"},
	{"a key outlives its region", "table.go", "regionBytes*int64(slot) + regionKeyOff).Store(0)", "regionBytes*int64(slot) + regionKeyOff).Load()", "TestClosedRegion"},
	{"the table's word for a region's place", "peer.go", "begin > total || size > total-begin", "total == 0", "TestNonsense$"},
	{"a receive's word for its place", "peer.go", "s.off > total || s.bytes > total-s.off", "total == 0", "TestNonsense$"},
	{"any number of pieces", "peer.go", "if num > MaxPieces {", "if false {", "TestNonsense$"},
	{"any number of receives has ended", "run.go", "ended-e.numEnded > uint64(e.waiting.num)", "false", "TestNonsenseEnds"},
	{"any length was received", "run.go", "return c, word>>32 == 0 && bytes <= uint64(numBytes)", "return c, word>>32 == 0", "TestReadEnd"},
	{"memory that shrinks", "peer.go", "!fixed || huge || size < least", "huge || size < least", "TestMapRemote"},
	{"memory that is too short", "peer.go", "!fixed || huge || size < least", "!fixed || huge", "TestMapRemote"},
	{"no look after saying what is touched", "run.go", "if !e.mayTouch(mark) {\n\t\treturn", "if false {\n\t\treturn", "TestTakenBackMeanwhile"},
	{"receives are released while they are written", "endpoint.go", "if e.settled || e.peerTouches() {", "if e.settled {", "TestTouchedIsNotReleased"},
	{"regions are released while they are written", "region.go", "return !r.t.isTouched(r.remote.Key) }", "return true }", "TestTouchedIsNotReleased"},
	{"the end of a copy is not told", "run.go", "\t\te.again = true\n\t\te.ringPeer()", "\t\te.again = true", "TestTouchedIsNotReleased"},
	{"a dead peer may still write", "endpoint.go", "!e.peer.gone && ", "", "TestTouchedIsNotReleased/dies"},
	{"who breaks the rules never dies", "connect.go", "_ = e.t.connManager.epoll.RearmEnd(c.fd, c.token)", "_ = c", "FuzzPeer"},
	{"the peer's memory stays mapped", "peer.go", "if version == p.seen {", "if true {", "TestPeerUnmaps"},
	{"any number of pending connections", "../../internal/accept/accept.go", "len(p.list) == p.max", "false", "TestPendingConnections"},
	{"any number of offers", "connect.go", "len(e.offers) == maxOffers", "false", "TestPendingConnections"},
	{"any offer will do", "connect.go", "if o.from == from.endpoint {", "if true {", "TestPendingConnections"},
	{"no look before sleeping", "bell.go", "if is() {", "if false {", "TestBell"},
	{"nobody is woken for a receive", "post.go", "e.peer.starved.Load() != 0", "false", "TestConformance/default/NoReceive"},
	{"inline data is not copied", "post.go", "if r.isInline {\n\t\tr.copyInline()", "if r.isInline = false; r.isInline {\n\t\tr.copyInline()", "TestConformance/default/Inline"},
	{"a dying peer takes requests", "peer.go", "transport.StateError) || sys.OwnerDied(p.holder.Load())", "transport.StateError)", "TestDyingTakesNothing"},
}

// TestMutations builds this package with each mistake in turn, and wants a test to
// notice. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	var list []testenv.Mutation
	for _, m := range mutations {
		list = append(list, testenv.Mutation{
			Name: m.name, File: m.file, From: m.from, To: m.to,
			Args:    []string{"-timeout=100s", "-run", m.test},
			Noticed: "--- FAIL|panic: |unexpected fault",
		})
	}
	testenv.RunMutations(t, list)
}
