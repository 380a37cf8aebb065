package wire

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make, each as an edit of one file.
var mutations = []struct{ name, file, from, to string }{
	{"tags without the payload", "digest.go", "if !same || d.given != d.total {", "if _ = same; d.given != d.total {"},
	{"a digest of another length", "digest.go", "if !same || d.given != d.total {", "if !same && d.given != d.total {"},
	{"no look at the length before the tag", "session.go", "if n, err := FrameBytes(frame); err != nil || n != len(frame) {", "if false {"},
	{"no replay window", "session.go", "case s.window.check(seq) != nil:", "case false:"},
	// Wider by one changes nothing: that number has the bit of the highest one.
	{"a window too wide", "window.go", "if w.highest-seq >= WindowNum {", "if w.highest-seq > WindowNum+1 {"},
	{"a window one too narrow", "window.go", "if w.highest-seq >= WindowNum {", "if w.highest-seq >= WindowNum-1 {"},
	{"a window that forgets too little", "window.go", "for n := w.highest; n < seq; {", "for n := w.highest + 1; n < seq; {"},
	{"a window that forgets too much", "window.go", "for n := w.highest; n < seq; {", "for n := w.highest - 1; n < seq; {"},
	{"a window that remembers what it never saw", "window.go", "clear(w.seen[:])", "_ = w"},
	{"numbers marked before the checks", "session.go", "head := getHead(header)\n", "head := getHead(header)\n\ts.window.mark(head.Seq)\n"},
	{"gaps are not noticed", "session.go", "case s.ordered && seq != s.window.highest+1:", "case false:"},
	{"fields before the tag", "session.go", "if !s.in.genuine(frame) {", "if reason := s.check(frame[LengthBytes : len(frame)-TrailerBytes]); reason != 0 {\n\t\treturn Head{}, s.counters.refuse(reason)\n\t}\n\tif !s.in.genuine(frame) {"},
	{"tags without the time", "mac.go", "frame[LengthBytes : len(frame)-tagBytes]", "frame[LengthBytes : len(frame)-TrailerBytes]"},
	{"tags half compared", "mac.go", "hmac.Equal(s.tag(frame), frame[len(frame)-tagBytes:])", "hmac.Equal(s.tag(frame)[:16], frame[len(frame)-tagBytes:len(frame)-16])"},
	{"one nanosecond too late", "mac.go", "return now-signed <= uint64(MaxSkew)", "return now-signed <= uint64(MaxSkew)+1"},
	{"one nanosecond too early", "mac.go", "return signed-now <= uint64(MaxSkew)", "return signed-now < uint64(MaxSkew)"},
	{"chunks share a nonce", "digest.go", "binary.LittleEndian.PutUint32(n[8:], chunk)", "_ = chunk"},
	{"messages share a nonce", "digest.go", "binary.LittleEndian.PutUint64(n[:], seq)", "_ = seq"},
	{"both directions have one key", "mac.go", `fromServer     = "server"`, `fromServer     = "client"`},
	{"keys that do not depend on what was said", "exchange.go", "label+string(transcript[:])", "label+string(transcript[:0])"},
	{"hellos may come twice", "guard.go", "if _, found := g.until[part]; found {", "if false {"},
	{"hellos are forgotten too early", "guard.go", "g.until[g.queue[g.head]] < now", "g.until[g.queue[g.head]] <= now"},
	{"nobody confirms", "exchange.go", "if !h.session.in.genuine(frame) {", "if false {"},
	{"an answer to another hello", "exchange.go", "if !h.answered(frame, &f) {", "if false {"},
	{"an old refusal counts", "exchange.go", "f.kind == kindRefusal && h.answered(frame, &f)", "f.kind == kindRefusal"},
	{"protection is not pinned", "exchange.go", "case f.protection != c.Protection:", "case false:"},
	{"hellos of any time", "exchange.go", "case !fresh(signedAt(frame), uint64(clock(c.Now))):", "case false:"},
	{"one's own hello", "exchange.go", "case helloFromServer(frame) == directionOf(h.role):", "case false:"},
	{"both formats have one key", "exchange.go", "newSigner(derive(h.secret, nil, labelHandshake, KeyBytes))", "newSigner(h.secret[:])"},
	{"a digest that leaves out what it may not", "session.go", "apart == 0 || s.apart && s.prot", "apart == 0 || s.prot"},
	{"an encrypted payload with an end that is not", "session.go", "s.apart && s.protection == ProtectDigest && uint64", "s.apart && uint64"},
	{"more left out than there is", "session.go", "&& uint64(apart) <= total", "&& total < 1<<63"},
	{"weak keys", "keyring.go", "if bytes.Count(secret[:], secret[:1]) == KeyBytes {", "if false {"},
	{"the key in an error", "keyring.go", `return nil, errors.New("the key has characters that are no hexadecimal digits")`, `return nil, fmt.Errorf("no hexadecimal digits: %s", text)`},
	{"the key in a log", "keyring.go", "func (r *Keyring) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }", "func (r *Keyring) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, \"%x\", *r.secret(r.Current())) }"},
}

// quick are those that always run; MOEWIRE_MUTATIONS=1 runs all.
var quick = map[string]bool{
	"tags without the payload": true, "no look at the length before the tag": true,
	"no replay window": true, "a window one too narrow": true,
}

// TestMutations builds this package with each mistake in turn, and wants the tests to
// notice. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	var list []testenv.Mutation
	for _, m := range mutations {
		list = append(list, testenv.Mutation{
			Name: m.name, File: m.file, From: m.from, To: m.to,
			Args: []string{"-timeout=2m", "-failfast"}, Quick: quick[m.name],
		})
	}
	testenv.RunMutations(t, list)
}
