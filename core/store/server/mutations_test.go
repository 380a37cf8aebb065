package server_test

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make: name, file, from, to.
var mutations = [][4]string{
	{"blocks with a wrong tag are stored", "put.go", "if t.Tag() != j.said.Tag {", "if false {"},
	{"blocks with a wrong tag are committed", "explicit.go", "if t.Of(h.key, h.writing.Buffer()) != h.job.Tag {", "if t == nil {"},
	{"blocks are stored before they are genuine", "put.go", "\tif err := c.in.End(); err != nil {\n\t\treturn err\n\t}\n\tif j.bounced", "\tif j.bounced"},
	{"a complaint is believed", "bad.go", "fits, status := c.fits(j, t, l, until)", "fits, status := false, message.OK"},
	{"no complaint is heard", "bad.go", "\t\t\tl.Bad()\n", ""},
	{"a complaint about a block that was replaced", "bad.go", " || l.Tag() != j.said.Tag", ""},
	{"what cannot be read is bad", "bad.go", "return false, message.Failed", "return false, message.OK"},
	{"a look at a block without an end", "bad.go", "if status := c.mayGoOn(until); status != message.OK {", "if status := c.mayGoOn(until); status == message.Closing {"},
	{"a look at a block that Close waits for", "bad.go", "case <-c.server.cut: // Close waits", "case <-make(chan int):"},
	{"a look at a block for a client that is gone", "bad.go", "case c.lost.Load():", "case false:"},
	{"a look at a block while others wait", "bad.go", "\t}, c.report)\n", "\t}, c.report)\n\tc.others.Wait()\n"},
	{"a look at a block that panics", "bad.go", "if err := safego.Call(\"store: complaint\", func() { j.status = c.recheck(j, t, until) }); err != nil {", "if j.status = c.recheck(j, t, until); err != nil {"},
	{"keys that no digest covers", "put.go", "c.in.Read(names)", "c.in.ReadBlock(names)"},
	{"blocks are sealed twice", "get.go", "c.head.ApartBytes = j.apart()", "_ = j.apart"},
	{"a put that is cut keeps its room", "put.go", "\tdefer w.Release()\n", ""},
	{"no cap of a connection", "conn.go", "Cap: s.cfg.Contexts + 1,", "Cap: 1 << 20,"},
	{"a cap one too low", "conn.go", "Cap: s.cfg.Contexts + 1,", "Cap: s.cfg.Contexts,"},
	{"contexts are not given back", "conn.go", "\t_ = c.contexts.Put(j.lease)\n", ""},
	{"a get keeps what it has sent", "get.go", "\t\tj.letGo()\n\t\tif err", "\t\tif err"},
	{"the order of a chain is lost", "get.go", "if j.turns > 1 {", "if false {"},
	{"a lost client counts twice", "conn.go", " || c.noted.Swap(true)", ""},
	{"a crowded connection counts twice", "server.go", "if there && !unwanted {", "if !unwanted {"},
	{"no deadline", "ops.go", "if c.expired(j) {", "if false {"},
	{"a server that is closed waits for the disk", "flush.go", "case <-c.server.cut:", "case <-make(chan int):"},
	{"leases are not given back", "job.go", "j.leases[i].Release()", "_ = i"},
	{"handles outlive their connection", "conn.go", "\tc.handles.close()\n", ""},
	{"unfinished blocks of a connection without a bound", "handles.go", "if hs.unfinished > 0 &&", "if false &&"},
	{"unfinished blocks of all without a bound", "handles.go", "all > maxAllUnfinishedBytes && all > n", "all < 0"},
	{"unfinished blocks count for ever", "handles.go", "\t\ths.uncount(h.job.Bytes)\n", ""},
	{"an unfinished block may rest", "handles.go", "h.pause > 0 && now.After(h.next)", "false"},
	{"handles do not expire", "handles.go", "(now.After(h.until) ||", "(false ||"},
	{"handles of a use before", "handles.go", "hs.all[at].id != id", "false"},
	{"a release gives back what is read", "handles.go", "if h.ended = true; h.uses == 0 {", "if h.ended = true; true {"},
	{"places without an arena", "get.go", "if placed && !c.shared.Load() {", "if false {"},
	{"blocks of which the place was said are kept", "share.go", "\tj.end()\n", "\tclear(j.leases)\n"},
	{"a release says nothing", "explicit.go", "there[i] = c.handles.release(", "there[i] = !c.handles.release("},
	{"a descriptor for each share", "share.go", "\tsys.CloseAll(h.arena, h.ours, h.theirs)\n", ""},
	{"descriptors without the client's proof", "share.go", "bounce, err := h.delivery.Await(deadline)", "bounce, err := (*sys.FD)(nil), error(nil)"},
	{"gaps in a block", "explicit.go", "j.said.Offset != uint64(h.given) ||", ""},
	{"a handle outlives its commit", "explicit.go", "\tdefer c.handles.release(j.said.Handle)\n", ""},
	{"half a block is committed", "explicit.go", "if h.given != int64(h.job.Bytes) {", "if false {"},
	{"reads behind the end", "explicit.go", "j.said.Offset+uint64(j.said.Bytes) > uint64(h.lease.Bytes()) ||", ""},
	{"reads before the beginning", "explicit.go", "|| j.said.Offset > uint64(h.lease.Bytes())", ""},
	{"namespaces without end", "ops.go", "if len(c.spaces) == maxSpaces {", "if false {"},
	{"a namespace that was not opened", "ops.go", "if id >= uint32(len(c.spaces)) {", "if id > uint32(len(c.spaces)) {"},
	{"any format is taken", "server.go", "if !message.IsHello(peer.Blob) {", "if false {"},
	{"clients without end", "server.go", "full := len(s.conns) >= s.cfg.MaxClients", "full := false"},
	{"unknown clients without end", "server.go", "if s.pending.Add(nc) {", "if false {"},
	{"a drain ends what runs", "conn.go", "if !errors.Is(err, stream.ErrStopped) {", "if true {"},
	{"a drain without a deadline", "end.go", "case <-time.After(time.Until(deadline)):", "case <-time.After(time.Hour):"},
	{"a close without a deadline", "end.go", "case <-time.After(s.cfg.End):", "case <-time.After(time.Hour):"},
	{"the store is closed while it is called", "end.go", "\t\ts.ended.Wait()\n", ""},
	{"hits are not counted", "get.go", "c.server.counters.Hits.Add(uint64(hits))", "_ = hits"},
	{"answers have no times", "conn.go", "if err == nil && !began.IsZero() {", "if false {"},
	{"a refused commit is no refused put", "counters.go", "r.code == message.Allocate || r.code == message.Commit", "r.code == message.Allocate"},
	{"a line per refused client", "events.go", "if now.Before(r.next) {", "if false {"},
	{"a line per refused put", "events.go", "now.Sub(s.last) < quiet", "false"},
	{"an allocation per get", "get.go", "\tj.start()\n\tc.data = c.data[:0]\n\tbytes", "\tj.start()\n\tj.pieces = append([][]byte(nil), j.pieces...)\n\tbytes"},
	{"a bounce buffer outlives its connection", "share.go", "\t\t_ = v.Close()\n", "\t\t_ = v\n"},
	{"a bounced put without a bounce buffer", "put.go", "(c.bounce == nil || ", "(c.bounce != nil && "},
	{"the tag of what the client has", "put.go", "\tj.space.tagger.Copy(buf, there)\n", "\tj.space.tagger.Write(there)\n\tcopy(buf, there)\n"},
	{"an allocation per put", "put.go", "t := j.space.tagger\n", "t := j.space.tagger.Clone()\n"},
	{"a reader may write", "rights.go", "case !r.Asks(code):", "case false:"},
	{"a key opens any salt", "rights.go", "case digest != nil && !r.Opens(*digest):", "case false:"},
	{"a refused right is not counted", "rights.go", "\ts.counters.Denied.Add(1)\n", ""},
	{"a key of a salt gets the arena", "share.go", "case arena == nil, c.rights.IsLimited():", "case arena == nil:"},
	{"a key of a salt sees all namespaces", "rights.go", "if !c.rights.IsLimited() {", "if true {"},
	{"single requests have all rights", "single.go", "\tif !c.may(head) {\n", "\tif false {\n"},
	{"a session keeps its rights", "rights.go", "; !found || since > c.reading.Load() {", "; !found || since > 1<<40 {"},
	{"a session survives its key", "rights.go", "; !found || since > c.reading.Load() {", "; found && since > c.reading.Load() {"},
	{"a silent session keeps its rights", "server.go", "\t\t\ts.revoke()\n", ""},
	{"a connection keeps its namespaces", "conn.go", "\t\tc.server.cfg.Store.Leave(c.spaces[i].ns)\n", "\t\t_ = i\n"},
	{"single requests keep their namespaces", "single.go", "\t\tc.leave()\n\t\tc.space", "\t\tc.space"},
}

// TestMutations builds this package with each mistake in turn, and wants the tests to
// notice. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	testenv.RunMutations(t, testenv.MutationsOf(mutations, testenv.Mutation{
		Noticed: "--- FAIL: |panic: ", Args: []string{"-timeout=2m", "-failfast"},
	}))
}
