package cpu_test

import (
	"strings"
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mutations are mistakes that are easy to make, each as an edit of one file. Random
// schedules notice them.
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
		"case out.Has(b.self):", "case false:",
	},
	{
		"a dispatch loses its own rows when it is out", "dispatch.go",
		"if out.Has(b.self) {", "if false {",
	},
	{
		"no poison", "slabs.go",
		"p.Proc != nil && !p.IsQuiesced(b.epoch)", "false",
	},
	{
		"no poison for who is about to die", "../suspicion/peer.go",
		"p.Proc.Lost() != nil", "p.Proc.Dying()",
	},
	{
		"a spare is used while somebody may write to it", "slabs.go",
		" || !own.harmless() {", " {",
	},
	{
		"a spare with old counters", "slabs.go",
		"own.seg.Word(layout.Counter(l)).Store(0)", "_ = l",
	},
	{
		"open before clean", "reopen.go",
		"if err := b.renew(s, unfinished); err != nil {",
		"b.publishOpen(s.index, protocol.Word(s.served+uint64(len(b.slots)), uint16(s.own.id)))\n\t\tif err := b.renew(s, unfinished); err != nil {",
	},
	{
		"open before the members are read", "reopen.go",
		"set := membership.Members(b.word.Load())",
		"b.publishOpen(s.index, protocol.Word(i, uint16(s.own.id)))\n\tset := membership.Members(b.word.Load())",
	},
	{
		"quiesced too early", "member.go",
		"uint64(b.epoch) + 1\n", "uint64(b.epoch) + 2\n",
	},
	{
		"a new epoch begins below operations that were opened", "update.go",
		"st.Next = max(st.Next, s.served+1)", "_ = s",
	},
	{
		"an update does not look who is unfinished", "update.go",
		"b.poison(s, unfinished)", "",
	},
	{
		"the blocked rank is blamed", "../suspicion/suspicion.go",
		"causes := tr.still(w, todo)", "causes := todo",
	},
	{
		"a decision outlives its member set", "fence.go",
		"membership.Members(w.members), w.epoch", "membership.Members(w.b.word.Load()), w.epoch",
	},
	{
		"outputs are replaced under their readers", "combine.go",
		"!waiting.Empty() {\n\t\t\treturn waiting, nil\n\t\t}\n\t\tb.pub", "false {\n\t\t\treturn waiting, nil\n\t\t}\n\t\tb.pub",
	},
	{
		"a combine lets the slab go at once", "combine.go",
		"protocol.Counted(s.op, s.combines, false)", "protocol.Counted(s.op, s.combines, true)",
	},
	{
		"layout of who was not counted", "received.go",
		"range s.counted.All() {", "range b.all.All() {",
	},
	{
		"outputs that were sent stand for those of the next combine", "remote_outputs.go",
		"f.outs.begin(word &^ protocol.Final);", "f.outs.begin(word &^ 0xffff);",
	},
	{
		"a remote source's rows lie where its first expert's do", "remote_receive.go",
		"j.Pos += in.begin[j.Expert]", "j.Pos += in.begin[0]",
	},
	{
		"a piece of rows is counted as one row more", "remote_send.go",
		"f.row += p.n", "f.row += p.n + 1",
	},
	{
		"arrive with the first piece of rows", "remote_receive.go",
		"if b.advance(in, h); in.next < in.total {", "if b.advance(in, h); false {",
	},
}

// looks are mistakes for which few schedules are long enough. A test that strikes
// at the right place notices them.
var looks = []testenv.Mutation{
	{
		Name: "no look at the members before writing rows", File: "send.go",
		From: "if !b.isMember() {", To: "if false {",
	},
	{
		Name: "no look at the members before writing what is deferred", File: "deferred.go",
		From: "slab == nil || !b.isMember()", To: "slab == nil",
	},
}

// TestMutations builds this package with each mistake in turn, and expects the schedules of
// one host or of two to notice it. It takes minutes: MOEWIRE_MUTATIONS=1 turns it on.
func TestMutations(t *testing.T) {
	var list []testenv.Mutation
	for _, m := range mutations {
		schedules := "^TestSchedules"
		if strings.HasPrefix(m.file, "remote") {
			schedules = "^TestSchedulesOfTwoHosts$" // on one host it is not met
		}
		list = append(list, testenv.Mutation{
			Name: m.name, File: m.file, From: m.from, To: m.to,
			Args: []string{"-timeout=60m", "-run", schedules}, Env: []string{"MOEWIRE_SCHEDULES=300000"},
			Noticed: "the last steps", // by a schedule
		})
	}
	for _, m := range looks {
		m.Args = []string{"-run", "^TestQuiescedOnceOut$"}
		list = append(list, m)
	}
	testenv.RunMutations(t, list)
}
