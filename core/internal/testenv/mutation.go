package testenv

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Mutation is a mistake that is easy to make, as an edit of one file, and how the tests
// of the package under test have to notice.
type Mutation struct {
	Name string
	// File is a path as seen from the package's folder; From is in it exactly once, and
	// becomes To.
	File, From, To string

	Args    []string // of `go test`, behind what Run gives it
	Env     []string // more of the environment, as "NAME=value"
	Noticed string   // a regular expression; "" is "--- FAIL: "
	Quick   bool     // cheap enough to run always
}

// mutated is in the environment of the tests of a mutant.
const mutated = "MOEWIRE_MUTATED"

// MutationsOf makes mutations of a table: name, file, from, to. In all else they are like one.
func MutationsOf(table [][4]string, like Mutation) (list []Mutation) {
	for _, row := range table {
		like.Name, like.File, like.From, like.To = row[0], row[1], row[2], row[3]
		list = append(list, like)
	}
	return list
}

// RunMutations runs each mutation as a subtest. That every edit still applies
// is checked always. Building the mutants and running their tests takes
// minutes: MOEWIRE_MUTATIONS=1 turns it on, for those that are not Quick.
func RunMutations(t *testing.T, list []Mutation) {
	if sources, _ := filepath.Glob("*.go"); len(sources) == 0 {
		Lacking(t, "sources", "this binary runs elsewhere than in its package's folder")
	}
	for _, m := range list {
		t.Run(strings.ReplaceAll(m.Name, " ", "-"), func(t *testing.T) {
			text, err := m.edited()
			if err != "" {
				t.Fatal(err)
			}
			switch {
			case os.Getenv(mutated) != "":
				t.Skip("this is a mutant")
			case !m.Quick && os.Getenv("MOEWIRE_MUTATIONS") == "":
				t.Skip("MOEWIRE_MUTATIONS is not set")
			}
			InTest(t)
			m.mustBeNoticed(t, text)
		})
	}
}

// edited is the file with the mistake, or else what is wrong with the edit.
func (m *Mutation) edited() (text []byte, wrong string) {
	files, wrong := edited([]Edit{{m.File, m.From, m.To}})
	return files[m.File], wrong
}

// mustBeNoticed runs the tests with the mistake.
func (m *Mutation) mustBeNoticed(t testing.TB, text []byte) {
	t.Helper()
	out, err := testEdited(t, map[string][]byte{m.File: text}, m.Args, append(m.Env, mutated+"=1"))
	if err == nil {
		t.Fatal("nobody has noticed")
	}
	if !m.noticed(out) {
		t.Fatalf("noticed, but not as %q says:\n%s", m.Noticed, out)
	}
	first, _, _ := strings.Cut(afterFirst(string(out), "--- FAIL: "), " ")
	t.Log("noticed by", first)
	if seed, _, _ := strings.Cut(afterFirst(string(out), "seed "), "\n"); seed != "" {
		t.Log("seed", seed)
	}
}

// noticed tells a test that has failed from a mistake that does not compile.
func (m *Mutation) noticed(out []byte) bool {
	if m.Noticed == "" {
		return bytes.Contains(out, []byte("--- FAIL: "))
	}
	return regexp.MustCompile(m.Noticed).Match(out)
}

func afterFirst(text, mark string) string {
	_, rest, _ := strings.Cut(text, mark)
	return rest
}
