package boundaries

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named is what a document says between backquotes if it is a path of the tree.
var named = regexp.MustCompile("`(\\.?\\w[\\w.-]*(?:/[\\w.-]+)+)`")

// TestContributingNamesWhatIsThere: the paths in CONTRIBUTING.md lead to files.
func TestContributingNamesWhatIsThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := named.FindAllStringSubmatch(string(text), -1)
	if len(found) < 20 {
		t.Fatalf("found only %d paths: the check looks for the wrong thing", len(found))
	}
	for _, f := range found {
		if strings.HasPrefix(f[1], "build/") || f[1] == "wheels/dist" {
			continue // made by the tests and by a build
		}
		if _, err := os.Stat(filepath.Join(root(t), f[1])); err != nil {
			t.Errorf("CONTRIBUTING.md names %s: %v", f[1], err)
		}
	}
}
