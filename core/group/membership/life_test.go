package membership

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLife: a table of the documents, docs/states.md, by itself.
func TestLife(t *testing.T) {
	allowed := map[string]string{
		"connecting": "member fenced failed closed",
		"member":     "fenced failed updating closed",
		"fenced":     "fenced failed updating closed",
		"failed":     "fenced failed updating closed",
		"updating":   "member fenced failed updating closed",
		"closed":     "",
	}
	first, second := errors.New("first"), errors.New("second")
	for from := Connecting; from < numStates; from++ {
		for to := Connecting; to < numStates; to++ {
			l, why := Begin(from, first), second
			moved := false
			if to == Member {
				moved, why = l.Join(), nil
			} else {
				moved = l.Leave(to, why)
			}
			require.Equal(t, contains(allowed[from.String()], to.String()), moved, "%v to %v", from, to)
			want := to
			if !moved {
				want, why = from, first
			}
			require.Equal(t, want, l.State())
			require.Equal(t, why, l.Why())
			require.Equal(t, want == Member, l.IsMember())
		}
	}
	l := Begin(Updating, first)
	require.False(t, l.Leave(Member, second), "a member has no reason to be out")
	require.Equal(t, "State(9)", State(9).String())
}

func contains(words, word string) bool { return slices.Contains(strings.Fields(words), word) }
