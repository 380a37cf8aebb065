package boundaries

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestExports builds the library and compares what it exports with what the
// header declares: cgo finds a wrong signature, but not a missing function.
func TestExports(t *testing.T) {
	header, err := os.ReadFile(filepath.Join(root(t), "capi", "include", "moewire.h"))
	if err != nil {
		t.Fatal(err)
	}
	declared := HeaderFunctions(string(header))
	slices.Sort(declared)
	if len(declared) == 0 {
		t.Fatal("the header declares no function")
	}
	exported := exportedSymbols(t, buildLibrary(t))
	if !slices.Equal(declared, exported) {
		t.Errorf("declared in moewire.h, not exported: %q\nexported, not declared: %q",
			missing(declared, exported), missing(exported, declared))
	}
}

// buildLibrary builds libmoewire.so as wheels/build_library.py does, as far as
// symbols go.
func buildLibrary(t *testing.T) string {
	t.Helper()
	library := filepath.Join(t.TempDir(), "libmoewire.so")
	script := filepath.Join(root(t), "capi", "exports.map")
	// Quotes nest, since paths may hold spaces.
	link := `-s -w '-extldflags="-Wl,--version-script=` + script + `"'`
	cmd := exec.Command("go", "build", "-buildvcs=false", "-buildmode=c-shared",
		"-ldflags="+link, "-o", library, "./capi")
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return library
}

func exportedSymbols(t *testing.T, library string) []string {
	t.Helper()
	file, err := elf.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range symbols {
		// The absolute symbol is the name of the symbol version itself.
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// missing returns the elements of a that are not in b.
func missing(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}
