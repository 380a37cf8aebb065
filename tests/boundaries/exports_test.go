package boundaries

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// headers are those that users include.
var headers = []string{"moewire.h", "moewire_fabric.h", "moewire_routing.h", "moewire_store.h"}

// TestHeaders: no header is forgotten, and moewire.h needs none of the others.
func TestHeaders(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(root(t), "capi", "include", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	if !slices.Equal(found, headers) {
		t.Errorf("capi/include has %q, known are %q", found, headers)
	}
	main, err := os.ReadFile(filepath.Join(root(t), "capi", "include", "moewire.h"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(main), "#include \"") {
		t.Error("moewire.h includes another header")
	}
}

// TestExports builds the library and compares what it exports with what the
// headers declare: cgo finds a wrong signature, but not a missing function.
func TestExports(t *testing.T) {
	var declared []string
	for _, name := range headers {
		header, err := os.ReadFile(filepath.Join(root(t), "capi", "include", name))
		if err != nil {
			t.Fatal(err)
		}
		functions := HeaderFunctions(string(header))
		if len(functions) == 0 {
			t.Fatalf("%s declares no function", name)
		}
		declared = append(declared, functions...)
	}
	slices.Sort(declared)
	exported := exportedSymbols(t, buildLibrary(t))
	if !slices.Equal(declared, exported) {
		t.Errorf("declared, not exported: %q\nexported, not declared: %q",
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
