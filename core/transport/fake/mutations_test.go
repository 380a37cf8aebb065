package fake_test

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that a carrier can make, each as an edit of one file,
// with a case of the conformance suite that notices it.
var mutations = []struct{ name, file, from, to, notices string }{
	{"one request too many", "request.go", "s.free = make([]*request, depth)", "s.free = make([]*request, depth+1); s.free[depth] = &request{ep: e}", "DepthSend"},
	{"a slot is free before its completion was polled", "complete.go", "t.finished.push(finished{c, r})", "t.finished.push(finished{c, nil}); r.polled()", "CloseIsBusy"},
	{"a completion is reported twice", "complete.go", "if r.duplicate {", "if r.id%7 == 0 {", "PollInParts"},
	{"a completion is lost", "complete.go", "t.finished.push(finished{c, r})", "if r.id%5 != 0 { t.finished.push(finished{c, r}) }", "PollInParts"},
	{"completions are lost where Poll has no room", "transport.go", "n := 0\n\tfor n < len(done) && t.finished.len() > 0 {", "n := 0\n\tfor t.finished.len() > len(done) { t.finished.pop().request.polled() }\n\tfor n < len(done) && t.finished.len() > 0 {", "PollInParts"},
	{"receives are not flushed", "endpoint.go", "r.finish(transport.StatusFlushed)\n\t}\n\tfor i", "r.stage = stageLost\n\t}\n\tfor i", "RetireFlushes"},
	{"a failed request leaves the endpoint ready", "request.go", "r.ep.fail(\"a work request failed\")", "_ = r", "RemoteRefuses"},
	{"a failure is not reported", "endpoint.go", "if !e.reported {", "if false {", "RemoteRefuses"},
	{"retiring is reported as a failure", "endpoint.go", "n.mu.Lock()\n\tdefer n.mu.Unlock()\n\te.enterError()\n\treturn nil", "n.mu.Lock()\n\tdefer n.mu.Unlock()\n\te.fail(\"retired\")\n\treturn nil", "RetireFlushes"},
	{"one byte too far", "region.go", "uint64(n) > size-off", "uint64(n) > size-off+1", "RemoteRefuses"},
	{"an offset that goes round", "region.go", "if off > size || uint64(n) > size-off {", "if off+uint64(n) > size {", "RemoteRefuses"},
	{"the peer's word for a region's size", "region.go", "size := uint64(len(r.mem))", "size := at.SizeBytes; r = &Region{mem: r.mem[:len(r.mem):len(r.mem)+1], remote: r.remote}; r.mem = r.mem[:cap(r.mem)]", "RemoteRefuses"},
	{"no look at the access", "region.go", "r.access&need == 0", "need == 0", "RemoteRefuses"},
	{"a key outlives its region", "region.go", "delete(r.transport.regions, r.remote.Key)", "_ = r", "RemoteRefuses"},
	{"the address does not count", "region.go", "off += at.Addr - r.remote.Addr", "_ = at", "RemoteRefuses"},
	{"a refused write has written", "step.go", "if mem == nil {\n\t\treturn false", "if mem == nil {\n\t\tfor _, r := range peer.transport.regions { r.mem[0]++ }\n\t\treturn false", "RemoteRefuses"},
	{"a region closes under its requests", "region.go", "if r.numUses > 0 {", "if false {", "RegionIsHeld"},
	{"a region stays held", "request.go", "p.Region.(*Region).numUses--", "_ = p", "RegionIsHeld"},
	{"inline data is not copied", "request.go", "q.RemoteOff, q.Inline", "q.RemoteOff, false", "Inline"},
	{"only the first piece is sent", "request.go", "for _, p := range r.pieces {\n\t\tf(", "for _, p := range r.pieces[:min(1, len(r.pieces))] {\n\t\tf(", "SendPieces"},
	{"a piece begins where the region does", "step.go", "[p.Off+off:p.Off+p.Bytes], src)", "[off:p.Bytes], src)", "SendPieces"},
	{"reads come from the start", "step.go", "reach(r.remote, r.off, int(r.numBytes), need)", "reach(r.remote, 0, int(r.numBytes), need)", "Read"},
	{"a write with immediate comes before its bytes", "step.go", "if recv != nil {\n\t\t\tr.match(", "if recv != nil {\n\t\tmem := peer.transport.reach(r.remote, r.off, int(r.numBytes), transport.AccessWrite); clear(mem)\n\t\tr.match(", "WriteImm"},
	{"the immediate is lost", "request.go", "r.op, r.imm, r.numBytes = q.ID, q.Op, q.Imm, numBytes", "r.op, r.imm, r.numBytes = q.ID, q.Op, 0, numBytes", "WriteImm"},
	{"no receive is used up by a write with immediate", "step.go", "if r.op == transport.OpSend || r.op == transport.OpWriteImm {", "if r.op == transport.OpSend {", "WriteImm"},
	{"more than the receive holds", "step.go", "if r.numBytes > recv.numBytes {", "if r.numBytes > recv.numBytes+1 {", "ReceiveTooShort"},
	{"a send without a receive is lost", "step.go", "if peer.waiting.len() == 0 {", "if peer.waiting.len() == 0 {\n\t\t\tr.finish(transport.StatusOK)\n\t\t\treturn true", "NoReceive"},
	{"an unresponsive peer is waited for without end", "step.go", "return r.endAfter(&r.unheard, n.cfg.RetryTimeout,", "return r.endAfter(&r.unheard, -1,", "PeerRetires"},
	{"an endpoint that was not connected answers", "step.go", "peer.state != transport.StateReady || peer.peer != r.ep.address()", "false", "ConnectUnresponsivePeer"},
	{"any address will do", "endpoint.go", "if crc32.ChecksumIEEE(b[:addressBytes-4]) != binary.LittleEndian.Uint32(b[addressBytes-4:]) {", "if false && crc32.ChecksumIEEE(b) == binary.LittleEndian.Uint32(b) {", "ConnectBadAddress"},
	{"connect again", "endpoint.go", "if e.state != transport.StateNew || e.connecting {", "if e.connecting {", "ConnectTwice"},
	{"a failed connect leaves the endpoint new", "endpoint.go", "e.enterError()\n\t\treturn fmt.Errorf(\"connect", "return fmt.Errorf(\"connect", "ConnectBadAddress"},
	{"the deadline does not count", "endpoint.go", "!n.now().Before(deadline)", "false", "ConnectLate"},
	{"posting before the endpoint is ready", "post.go", "e.state == transport.StateNew || e.state == transport.StateClosed", "e.state == transport.StateClosed", "StatesForbid"},
	{"posting after close", "post.go", "if e.state == transport.StateClosed {", "if false {", "StatesForbid"},
	{"a bad request takes those before it along", "post.go", "return i, err\n\t\t}\n\t}\n\treturn len(requests), nil\n}\n\nfunc (e *Endpoint) postSend", "return 0, err\n\t\t}\n\t}\n\treturn len(requests), nil\n}\n\nfunc (e *Endpoint) postSend", "BadRequests"},
	{"a region of another transport", "post.go", "r.transport != t", "false", "BadRequests"},
	{"the end of a piece is not checked", "post.go", "p.Bytes > len(r.mem)-p.Off", "false", "BadRequests"},
	{"a Wake is lost before Wait", "transport.go", "if !some {", "select { case <-t.wake: default: }\n\tif !some {", "Wake"},
	{"a completion does not end Wait", "complete.go", "t.counts.Completed[r.status]++\n\tt.Wake()", "t.counts.Completed[r.status]++", "WaitSeesCompletions"},
	{"ready endpoints close", "endpoint.go", "outstanding > 0, e.state == transport.StateReady,", "outstanding > 0,", "CloseIsBusy"},
	{"a transport closes with regions", "transport.go", "held := len(t.endpoints) + len(t.regions)", "held := len(t.endpoints)", "TransportClose"},
	{"a goroutine is left", "network.go", "n.numOpen++", "n.numOpen++\n\tgo func() { select {} }()", "LeavesNothing"},
	{"a request allocates", "request.go", "*r = request{ep: r.ep, pieces: r.pieces[:0],", "*r = request{ep: r.ep, pieces: make([]transport.Piece, 0, 4),", "AllocatesNothing"},
	{"completions of one endpoint go to another", "step.go", "peer := t.endpoints[at.endpoint]", "peer := t.endpoints[at.endpoint]\n\tfor _, p := range t.endpoints { peer = p; break }\n\tif peer != nil { at.nonce = peer.nonce; if peer.peer.transport == uint32(r.ep.transport.index) && peer.state == transport.StateReady { return peer } }", "ManyEndpoints"},
	{"memory is written after its completion", "complete.go", "func (n *Network) scribble() {", "func (n *Network) scribble() {\n\tn.cfg.Late = LateUntilClose", "RetireUnderLoad"},
}

// TestMutations builds this package with each mistake in turn, and wants the suite to
// notice. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	var list []testenv.Mutation
	for _, m := range mutations {
		list = append(list, testenv.Mutation{
			Name: m.name, File: m.file, From: m.from, To: m.to,
			Args: []string{"-timeout=2m", "-run", "^TestConformance$/^any_order$/^" + m.notices + "$"},
			Env:  []string{"MOEWIRE_FAKE_TIMEOUT=2s"}, Noticed: "--- FAIL: TestConformance/any_order/" + m.notices,
		})
	}
	testenv.RunMutations(t, list)
}
