package boundaries

import (
	"os"
	"slices"
	"testing"
	"testing/fstest"
)

// TestIdentifiersHaveTheFieldsWords: no name in the sources has a word that this project has coined.
func TestIdentifiersHaveTheFieldsWords(t *testing.T) {
	wrong, files, err := checkAllWords(os.DirFS(root(t)))
	if err != nil {
		t.Fatal(err)
	}
	if files < 500 {
		t.Fatalf("found only %d sources in %s: the check looks at the wrong place", files, root(t))
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

// TestCheckWordsFinds: each word in each language, in both ways to write names, and in nothing that only has its letters.
func TestCheckWordsFinds(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    int
	}{
		"a/x.go":     {"package a\n\nfunc NoRoomIsTold(victim int) { _ = JudgeTCPVerdict }", 4},
		"b/x.go":     {"package a\n\n// the verdict\nvar fateful, template = \"victim\", nearest", 0},
		"capi/x.go":  {"package main\n\nvar near, far = 1, 2", 1},
		"core/x.go":  {"package core\n\nvar near = rdma_near", 1},
		"a.py":       {"def _told(x): # victim\n    \"\"\"The\n    verdict.\"\"\"\n    return x.spread + \"bare\" + 'wide'\n", 2},
		"a.cuh":      {"/* told\n * bare */ int MW_ERROR_NEAR; // victim\nint wide_t;", 2},
		"a.md":       {"victim", 0},
		"build/x.py": {"victim = 1", 0},
		".venv/x.py": {"victim = 1", 0},
		".ci/x.py":   {"victim = 1", 1},
	} {
		wrong, _, err := checkAllWords(fstest.MapFS{name: {Data: []byte(c.content)}})
		if err != nil || len(wrong) != c.want {
			t.Errorf("%s: %q, %v: expected %d", name, wrong, err, c.want)
		}
	}
}

func TestWordsOf(t *testing.T) {
	for name, want := range map[string][]string{
		"noRoomIsTold": {"no", "room", "is", "told"}, "TCPConn": {"tcp", "conn"}, "MW_ERROR_NEAR": {"mw", "error", "near"},
		"_bare": {"bare"}, "farFDs": {"far", "f", "ds"}, "uint64": {"uint"}, "x86Wide": {"x", "wide"},
	} {
		if got := wordsOf(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, expected %q", name, got, want)
		}
	}
}
