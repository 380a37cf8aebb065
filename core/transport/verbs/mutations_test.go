package verbs

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make with DC, each as an edit of one
// file, and the test that has to notice.
var mutations = []struct{ name, file, from, to, test string }{
	{"an initiator is not reset", "poll.go", "\t\tt.resetDCI(on)", "\t\t_ = on", "TestDCFailsAlone"},
	{"who is served does not post", "dcport.go", "return d.post(granted.end)", "return dcAfter{reset: -1}", "TestDCFailsAlone"},
	{"a batch that was refused is taken", "dcport.go", "errno != 0 {", "errno == 1 {", "TestDCTakesNoBatch"},
	{"inline data is not kept", "post.go", "numSGE = s.keepInline(i, numSGE)", "_ = i", "TestDCConformance/one_initiator/Inline|TestDCRequests"},
	{"receives that were kept are forgotten", "dcend.go", "\tn := s.outstanding()", "\tn := 0", "TestDCNotForThisPair|TestDCUnresponsivePeer"},
	{"what waits is not returned", "dcend.go", "\te.send.flushQueue(&e.dc.queue)", "", "TestDCRetireOfWhoWaits"},
	{"a target outlives its endpoint's error", "dcend.go", "more := e.dc.destroy(t); more != nil", "more := error(nil); more != nil", "TestDCUnresponsivePeer"},
	{"MTUs may differ", "dc.go", "use && local.mtu != peer.mtu", "false", "TestDCNotForThisPair"},
	{"an initiator is not drained", "dcport.go", "i.gone || !still {", "i.gone || !still || true {", "TestDCFailsAlone"},
	{"the initiators outlive the device", "events.go", "\tt.abandonDC()", "", "TestDCDeviceIsRemoved"},
	{"used without being asked for", "dcdriver.go", "if !t.config.DC {", "if false {", "TestDCFallsBack|TestDCConformance/off/Identity"},
}

// TestMutations builds this package with each mistake in turn, and wants a test to
// notice. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	var list []testenv.Mutation
	for _, m := range mutations {
		list = append(list, testenv.Mutation{
			Name: m.name, File: m.file, From: m.from, To: m.to,
			Args: []string{"-timeout=100s", "-run", m.test}, Noticed: "--- FAIL|panic: ",
		})
	}
	testenv.RunMutations(t, list)
}
