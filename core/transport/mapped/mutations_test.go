package mapped

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
	{"memory that shrinks", "peer.go", "!fixed || huge || size < least", "huge || size < least", "TestMapFar"},
	{"memory that is too short", "peer.go", "!fixed || huge || size < least", "!fixed || huge", "TestMapFar"},
	{"no look after saying what is touched", "run.go", "if !e.mayTouch(mark) {\n\t\treturn", "if false {\n\t\treturn", "TestTakenBackMeanwhile"},
	{"receives are given back while they are written", "endpoint.go", "if e.settled || e.peerTouches() {", "if e.settled {", "TestTouchedIsNotGivenBack"},
	{"regions are given back while they are written", "region.go", "return !r.t.isTouched(r.remote.Key) }", "return true }", "TestTouchedIsNotGivenBack"},
	{"the end of a copy is not told", "run.go", "\t\te.again = true\n\t\te.ringPeer()", "\t\te.again = true", "TestTouchedIsNotGivenBack"},
	{"a dead peer may still write", "endpoint.go", "!e.peer.gone && ", "", "TestTouchedIsNotGivenBack/dies"},
	{"who breaks the rules never dies", "connect.go", "_ = e.t.keeper.epoll.RearmEnd(c.fd, c.token)", "_ = c", "FuzzPeer"},
	{"the peer's memory stays mapped", "peer.go", "if version == p.seen {", "if true {", "TestPeerUnmaps"},
	{"any number of guests", "keeper.go", "len(k.guests) == maxGuests", "false", "TestStrangers"},
	{"any number of offers", "connect.go", "len(e.offers) == maxOffers", "false", "TestStrangers"},
	{"any offer will do", "connect.go", "if o.from == from.endpoint {", "if true {", "TestStrangers"},
	{"no look before sleeping", "bell.go", "if is() {", "if false {", "TestBell"},
	{"nobody is woken for a receive", "post.go", "e.peer.starved.Load() != 0", "false", "TestConformance/default/NoReceive"},
	{"inline data is not copied", "post.go", "if r.isInline {\n\t\tr.copyInline()", "if r.isInline = false; r.isInline {\n\t\tr.copyInline()", "TestConformance/default/Inline"},
	{"a dying peer takes requests", "peer.go", "transport.StateError) || sys.OwnerDied(p.holder.Load())", "transport.StateError)", "TestDyingTakesNothing"},
}

// TestMutations builds this package with each mistake in turn, and wants a test
// to notice. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	if os.Getenv("MOEWIRE_MUTATIONS") == "" {
		t.Skip("MOEWIRE_MUTATIONS is not set")
	}
	for _, m := range mutations {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			cmd := exec.Command("go", "test", "-overlay", overlay(t, m.file, m.from, m.to), "-timeout=100s", "-count=1", "-run", m.test, ".")
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "nobody has noticed")
			require.Regexp(t, "--- FAIL|panic: |unexpected fault", string(out), "noticed by a test, not by the compiler")
		})
	}
}

// TestMutationsApply keeps the list in step with the code.
func TestMutationsApply(t *testing.T) {
	for _, m := range mutations {
		edit(t, m.file, m.from, m.to)
	}
}

// edit returns a file with one place changed.
func edit(t *testing.T, file, from, to string) string {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), from), "%q is once in %s", from, file)
	return strings.Replace(string(text), from, to, 1)
}

// overlay tells the go command to read one file with an edit.
func overlay(t *testing.T, file, from, to string) string {
	path, err := filepath.Abs(file)
	require.NoError(t, err)
	dir := t.TempDir()
	edited, list := filepath.Join(dir, file), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(edited, []byte(edit(t, file, from, to)), 0o600))
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: edited}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(list, replace, 0o600))
	return list
}
