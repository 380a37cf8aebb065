package tcp

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
	{"a payload is not checked", "receiver.go", "return x.digest.Check()", "return nil", "TestAlteredPayload"},
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
		"TestConformance/digest/DepthSend",
	},
	{"any number of strangers", "lobby.go", "len(l.guests) == l.t.config.NumPending", "false", "TestStrangers"},
	{"strangers stay for ever", "lobby.go", "!now.Before(l.guests[0].until)", "false", "TestWF1Strangers"},
	{"a stranger is believed before the confirmation", "lobby.go", "if !g.shake.Done() {", "if false {", "TestWF1Strangers"},
	{"no look before sleeping", "standby.go", "t.hasReady() || s == &t.waiter && t.news()", "false", "TestConformance/digest/Wa"},
	{"memory is in use after the end", "end.go", "ep.closeConns()", "_ = 0", "TestConformance/digest/RetireUnderLoad"},
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
			require.Regexp(t, "--- FAIL|panic: |DATA RACE", string(out), "noticed by a test, not by the compiler")
		})
	}
}

// overlay tells the go command to read one file with an edit.
func overlay(t *testing.T, file, from, to string) string {
	path, err := filepath.Abs(file)
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), from), "%q is once in %s", from, file)
	dir := t.TempDir()
	edited, list := filepath.Join(dir, file), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(edited, []byte(strings.Replace(string(text), from, to, 1)), 0o600))
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: edited}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(list, replace, 0o600))
	return list
}
