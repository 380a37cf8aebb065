package boundaries

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// TestSentencesNameThings: comments and documents seldom say who or somebody.
func TestSentencesNameThings(t *testing.T) {
	wrong, lines, err := checkSentences(os.DirFS(root(t)), 300)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{".go", ".py", ".h", ".md"} {
		if lines[end] < 1000 {
			t.Errorf("found only %d lines of text in files *%s: the check looks at the wrong place", lines[end], end)
		}
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

// TestCheckSentencesFinds: in comments of each language, in documents, and in nothing that is code.
func TestCheckSentencesFinds(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    int
	}{
		"a/x.go":  {"package a\n\n// The rank whose turn it is.\n/* Nobody\nwaits. */\nvar a = 1", 2},
		"b/x.go":  {"package a\n\nvar whose = \"somebody\"", 0},
		"a.py":    {"\"\"\"Who\nknows.\"\"\"\nx = 1  # anyone\nwhom = 'no one'\n", 2},
		"a.h":     {"/* The caller\n * to whom. */ int who; // Every one", 2},
		"a.md":    {"Whoever, a wholesome body.\n", 0},
		"b.md":    {"Somebody.\n", 1},
		"c.md":    {strings.Repeat("A line of text.\n\n", 1000) + strings.Repeat("One whose name is known.\n", 6), 0},
		"d.md":    {strings.Repeat("A line of text.\n\n", 994) + strings.Repeat("One whose name is known.\n", 6), 1},
		".x/a.md": {"Somebody.\n", 0},
	} {
		wrong, _, err := checkSentences(fstest.MapFS{name: {Data: []byte(c.content)}}, 1)
		if err != nil || len(wrong) != c.want {
			t.Errorf("%s: %q, %v: expected %d", name, wrong, err, c.want)
		}
	}
}
