package boundaries

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestIndirectModules: go.mod says "indirect" of the modules that no file here imports, and of no others, as
// `go mod tidy` would, which needs the network.
func TestIndirectModules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := goFiles(os.DirFS(root(t)))
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`(?m)^(?:require)?\s+(\S+\.\S+/\S+) v\S+( // indirect)?$`).FindAllStringSubmatch(string(text), -1)
	if len(required) < 5 {
		t.Fatalf("found only %d modules in go.mod: the check looks for the wrong thing", len(required))
	}
	for _, r := range required {
		if indirect := r[2] != ""; indirect == imported(files, r[1]) {
			t.Errorf("go.mod says indirect of %s: %v; run go mod tidy", r[1], indirect)
		}
	}
}

// imported reports whether a file imports a package of a module.
func imported(files []goFile, module string) bool {
	for _, f := range files {
		for _, path := range f.imports {
			if path == module || strings.HasPrefix(path, module+"/") {
				return true
			}
		}
	}
	return false
}
