package client

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make: name, file, from, to.
var mutations = [][4]string{
	{"no look at tags", "receive.go", "case l.checker.Tag() == e.Tag:", "case true:"},
	{"bytes before they are genuine", "receive.go", "if err := l.in.End(); err != nil {\n\t\treturn false, err\n\t}\n\tl.took", "_ = l.in.End()\n\tl.took"},
	{"a lease without a look at its tag", "lease.go", "if tagger.Tag() != l.tag {", "if l.tag == (tag.Tag{}) {"},
	{"no complaint", "receive.go", "\t\tl.complain(t.keys[at], e.Tag)\n", ""},
	{"a complaint without the tag", "link.go", "said.DeadlineUs, said.Tag = 0, t.tag", "said.DeadlineUs = 0"},
	{"a cable that changes blocks is kept", "receive.go", "if err == nil && !gone[0] {", "if err == nil && gone == nil {"},
	{"a complaint has the deadline of a get", "watch.go", "hung = l.over(t, now, complaintTime, next) || hung", "hung = l.over(t, now, t.timeout, next) || hung"},
	{"a server looks at a complaint without an end", "watch.go", "hung = l.over(t, now, complaintTime, next) || hung", "_ = complaintTime"},
	{"puts are sealed twice", "link.go", "\t\tl.head.ApartBytes = uint32(t.bytes) // it has a tag\n", ""},
	{"blocks over the end of their buffers", "receive.go", "case size(t.bufs[i]) < int(e.Bytes):", "case false:"},
	{"no room is no miss", "receive.go", "if dst == nil && e.Bytes > 0 {", "if false {"},
	{"no deadline", "watch.go", "if left <= 0 {", "if false {"},
	{"one server after the other is asked", "ask.go", "c.timeoutOf(timeout), began)\n\t}\n\treturn sent", "c.timeoutOf(timeout), began)\n\t\t_, _ = sent[i].answer()\n\t}\n\treturn sent"},
	{"one server after the other is looked at", "lease.go", "asks[i] = c.sendLookup(parts[i], &r, began)\n", "asks[i] = c.sendLookup(parts[i], &r, began)\n\t\t_, _ = asks[i].answer()\n"},
	{"leases that end together stay", "lease.go", "\t\ta.said.NumKeys++\n", ""},
	{"no breaker", "watch.go", "\tif hung {\n\t\tl.fail(errHung)\n\t}\n", "\t_ = hung\n"},
	{"a name is resolved once", "peer.go", "func dialTCP(ctx context.Context, addr string) (Conn, error) {\n", "var known sync.Map\n\nfunc dialTCP(ctx context.Context, addr string) (c Conn, err error) {\n\tif at, found := known.Load(addr); found {\n\t\taddr = at.(string)\n\t}\n\tdefer func(name string) {\n\t\tif err == nil {\n\t\t\tknown.Store(name, c.RemoteAddr().String())\n\t\t}\n\t}(addr)\n"},
	{"no probe", "peer.go", "if !p.sleep(wait) {", "if !p.sleep(time.Hour) {"},
	{"a refusal is a miss", "peer.go", "errors.Is(err, stream.ErrSilent), ", ""},
	{"what is left never completes", "link.go", "\tfor _, t := range l.running {\n\t\tt.complete()\n\t}\n", ""},
	{"what is queued never completes", "link.go", "\tfor _, t := range l.queue {\n\t\tt.complete()\n\t}\n", ""},
	{"more than was granted", "link.go", "|| len(l.running) >= int(l.opened.Contexts)) {", ") {"},
	{"one more than the cap", "client.go", "Cap: cfg.Requests,", "Cap: cfg.Requests + 1,"},
	{"completions without end", "call.go", "if len(c.calls) >= c.cfg.Requests {", "if false {"},
	{"places are lost", "call.go", "\t_ = c.places.Put(k.place)\n\tif !k.sync {", "\tif !k.sync {"},
	{"the last server has all", "hashing.go", "score > most", "score >= 0*most"},
	{"the order of keys is lost", "call.go", "p.at = append(p.at, i)", "p.at = append(p.at, len(p.at))"},
	{"parts in any order", "receive.go", "if int(p.First) != t.next || int(p.Offset) != t.off || tooLong {", "if tooLong {"},
	{"a copy without a look at its tag", "fetch.go", "if l.checker.Tag() != e.Tag {", "if false {"},
	{"what has moved is a miss", "fetch.go", "\t\tl.sendAgain(t, i)\n", ""},
	{"a leased copy without a look at its tag", "place.go", "return tagger.Tag() == l.tag", "return true"},
	{"a place without a look at its tag", "place.go", "l.link.tags.Clone().Of(l.key, data) != l.tag ||", "data == nil ||"},
	{"a lease without an end", "place.go", "time.Now().Before(l.until)", "true"},
	{"a shorter file is unreadable", "fetch.go", "case errors.Is(err, io.ErrUnexpectedEOF):", "case errors.Is(err, io.EOF):"},
	{"shm by TCP", "share.go", "case wanted == CarrierSHM && (", "case false && ("},
	{"shm by TCP once it fails", "fetch.go", "case l.peer.client.cfg.Carrier == CarrierSHM:", "case false:"},
	{"another host latches", "share.go", "\tcase errors.Is(err, errElsewhere):\n\t\treturn nil\n", "\tcase errors.Is(err, errElsewhere):\n\t\tl.peer.latch(err)\n\t\treturn nil\n"},
	{"a failure does not latch", "share.go", "\t\tl.peer.latch(err)\n", ""},
	{"a page that cannot be read latches", "fetch.go", "case sys.IsUnreadable(err) || sys.IsShortage(err):", "case sys.IsShortage(err):"},
	{"a shortage latches", "share.go", "if sys.IsShortage(err) || errors", "if errors"},
	{"the arena is not asked for again", "later.go", "ProbeMax; l.rest(wait);", "ProbeMax; false;"},
	{"a server that has not sent its arena holds Close up", "share.go", "\tinvitation.Stop = l.peer.client.stop\n", ""},
	{"requests stay where they are", "later.go", "if m == nil {", "if true {"},
	{"a connection that is left stays", "later.go", "if l.isIdle() {", "if false {"},
	{"a connection is left at once", "later.go", "wait := l.successor.hold + leaveEvery;", "wait := time.Duration(0);"},
	{"what has ended is up", "peer.go", "if err := p.link.cause(); err != nil {", "if err := error(nil); err != nil {"},
	{"an arena outlives its link", "local_conn.go", "_ = l.view.Close()", "_ = l.view"},
	{"room of a put that was answered is kept", "bounce.go", "\t\tl.bounce.Give(t.offset)\n", ""},
	{"a bounce buffer outlives its link", "local_conn.go", "\tcloseBounce(l.bounce)\n}", "\t_ = l.bounce\n}"},
	{"puts bounce where they cannot", "bounce.go", "\t\tl.unbounced = true\n", ""},
	{"keys of a late call are kept", "watch.go", ", t.keys = nil, nil, noKeys[:len(t.keys)]", " = nil, nil"},
	{"a caller leaves others without a reader", "turn.go", "if len(l.running) > 0 || l.ended", "if l.ended"},
	{"an end during a caller's turn is forgotten", "turn.go", "if len(l.running) > 0 || l.ended || l.err != nil {\n\t\tl.offer()", "if len(l.running) > 0 || l.err != nil {\n\t\tl.offer()"},
	{"memory for one block", "receive.go", "return t.gave[i : i+1]", "return t.gave[i : i+1 : i+1][:0]"},
}

// TestMutations builds this package with each mistake in turn, and wants the tests to
// notice. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	testenv.RunMutations(t, testenv.MutationsOf(mutations, testenv.Mutation{
		Noticed: "--- FAIL: |panic: ", Args: []string{"-timeout=90s", "-failfast"}, Env: []string{"MOEWIRE_TIER=test"},
	}))
}
