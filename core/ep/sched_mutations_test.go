package ep_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutations are mistakes that are easy to make, each as an edit of one file.
var mutations = []struct{ name, file, from, to string }{
	{
		"no look at the members before writing", "send.go",
		"if !b.isMember() {", "if false {",
	},
	{
		"no look at the members after the last read", "combine.go",
		"if !b.isMember() {", "if false {",
	},
	{
		"no look at the members after a release was seen", "combine.go",
		"case out>>b.self&1 == 1:", "case false:",
	},
	{
		"a dispatch loses its own rows when it is out", "dispatch.go",
		"if out>>b.self&1 == 1 {", "if false {",
	},
	{
		"no poison", "slabs.go",
		"p.proc != nil && !p.silent(b.epoch)", "false",
	},
	{
		"no poison for who is about to die", "shared.go",
		"p.proc.Lost() != nil", "p.proc.Dying()",
	},
	{
		"a spare is used while somebody may write to it", "slabs.go",
		"if !own.harmless() {", "if false {",
	},
	{
		"a spare with old counters", "slabs.go",
		"own.seg.Word(layout.Counter(l)).Store(0)", "_ = l",
	},
	{
		"open before clean", "reopen.go",
		"if err := b.renew(s, late); err != nil {",
		"b.peers[b.self].open(s.index).Store(layout.Word(s.served+uint64(len(b.slots)), uint16(s.own.id)))\n\t\tif err := b.renew(s, late); err != nil {",
	},
	{
		"open before the members are read", "reopen.go",
		"set := membership.Set(b.dom.Members().Load())",
		"b.peers[b.self].open(s.index).Store(layout.Word(i, uint16(s.own.id)))\n\tset := membership.Set(b.dom.Members().Load())",
	},
	{
		"quiet too early", "member.go",
		"Store(uint64(b.epoch) + 1)", "Store(uint64(b.epoch) + 2)",
	},
	{
		"a new epoch begins below operations that were opened", "update.go",
		"st.Next = max(st.Next, s.served+1)", "_ = s",
	},
	{
		"an update does not look who is late", "update.go",
		"b.poison(s, late)", "",
	},
	{
		"the messenger is blamed", "trial.go",
		"causes := tr.still(w, todo)", "causes := todo",
	},
	{
		"a verdict outlives its member set", "fence.go",
		"membership.Set(w.members), w.epoch", "membership.Set(w.b.dom.Members().Load()), w.epoch",
	},
	{
		"outputs are replaced under their readers", "combine.go",
		"waiting != 0 {\n\t\t\treturn waiting, nil\n\t\t}\n\t\tb.pub", "false {\n\t\t\treturn waiting, nil\n\t\t}\n\t\tb.pub",
	},
	{
		"a combine lets the slab go at once", "combine.go",
		"layout.Counted(s.op, s.combines, false)", "layout.Counted(s.op, s.combines, true)",
	},
	{
		"layout of who was not counted", "dispatch.go",
		"if s.counted>>t&1 == 1 {", "if true {",
	},
	{
		"outputs that were sent stand for those of the next combine", "far_outputs.go",
		"f.outs.begin(word &^ 1);", "f.outs.begin(word &^ 0xffff);",
	},
	{
		"a far source's rows lie where its first expert's do", "far_receive.go",
		"j.Pos += in.begin[j.Expert]", "j.Pos += in.begin[0]",
	},
	{
		"a piece of rows is counted as one row more", "far_send.go",
		"f.row += p.n", "f.row += p.n + 1",
	},
}

// Not here, for want of a schedule that is likely enough: writing what is owed
// without a look at the members. The model of tests/model notices it.

// TestMutations builds this package with each mistake in turn, and wants
// the schedules to notice, of one host or of two. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	if os.Getenv("MOEWIRE_MUTATIONS") == "" {
		t.Skip("MOEWIRE_MUTATIONS is not set")
	}
	for _, m := range mutations {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			cmd := exec.Command("go", "test", "-overlay", overlay(t, m.file, m.from, m.to), "-timeout=60m", "-count=1", "-run", "^TestSchedules", ".")
			cmd.Env = append(os.Environ(), "MOEWIRE_SCHEDULES=300000")
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "nobody has noticed")
			require.Contains(t, string(out), "the last steps", "noticed by a schedule, not by the compiler")
			t.Log(firstLine(string(out), "seed "))
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

func firstLine(text, with string) string {
	for line := range strings.Lines(text) {
		if i := strings.LastIndex(line, with); i >= 0 {
			return strings.TrimSpace(line[i:])
		}
	}
	return ""
}
