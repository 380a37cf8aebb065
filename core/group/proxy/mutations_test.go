package proxy

import (
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// TestMutations: mistakes that are easy to make are noticed.
func TestMutations(t *testing.T) {
	all := []testenv.Mutation{
		{Name: "a lease is replaced", File: "step.go", From: "if s.bytes > 0 {\n\t\treturn false", To: "if false {\n\t\treturn false"},
		{Name: "a message is shown while another one is", File: "step.go", From: "if s.shown {\n", To: "if false {\n"},
		{Name: "a lease has the number before", File: "step.go", From: "s.leased++\n", To: ""},
		{Name: "nobody looks after a post", File: "step.go", From: "r.look = r.look.With(int(rank))\n", To: ""},
		{Name: "the bell is not heard", File: "step.go", From: "r.look = r.remote.Ranks()\n", To: ""},
		{Name: "a message is posted twice", File: "step.go",
			From: "if r.remote.Post(rank, n) != nil {", To: "if r.remote.Post(rank, n) != nil || r.remote.Post(rank, n) != nil {"},
		{Name: "any number will do", File: "step.go", From: "d.Number == r.generation|s.leased && ", To: ""},
		{Name: "any length will do", File: "step.go", From: " && d.Bytes-1 < uint64(s.bytes)", To: ""},
		{Name: "only the first of several is served", File: "step.go",
			From: "for i := range n {\n\t\tif err := r.serve", To: "for i := range min(n, 1) {\n\t\tif err := r.serve"},
		{Name: "a message is not released", File: "step.go", From: "r.remote.Release(int(rank))\n", To: ""},
		{Name: "it is settled before what was taken is done", File: "step.go", Args: []string{"-run", "TestSettle$"},
			From: "if n == 0 {\n\t\tr.p.settled", To: "if n >= 0 {\n\t\tr.p.settled"},
		{Name: "a flush has no reason of its own", File: "proxy.go", Args: []string{"-run", "TestFlush"}, From: "return ReasonFlush", To: "return ReasonBroken"},
		{Name: "what was pushed before the end is lost", File: "proxy.go", From: "r.last(); err != nil", To: "error(nil); err != nil", Args: []string{"-run", "TestStop$"}},
	}
	for i := range all {
		if all[i].Args == nil {
			all[i].Args = []string{"-run", "TestEveryOrder|TestBad|TestLost"}
		}
	}
	testenv.RunMutations(t, all)
}
