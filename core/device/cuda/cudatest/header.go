package cudatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// CheckHeader has a C++ compiler compare expressions with values, by a header of
// the kernels, as the emulator compiles it.
func CheckHeader(t testing.TB, header string, want map[string]int64) {
	t.Helper()
	cxx, err := exec.LookPath("c++")
	if err != nil {
		testenv.Lacking(t, "c++", "no C++ compiler for the probe")
	}
	var source strings.Builder
	fmt.Fprintf(&source, "#include <cstddef>\n#define MW_HOST\n#include %q\n", header)
	for expression, v := range want {
		fmt.Fprintf(&source, "static_assert((long long)(%s) == %d, %q);\n", expression, v, expression)
	}
	file := filepath.Join(t.TempDir(), "probe.cc")
	if err := os.WriteFile(file, []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(cxx, "-std=c++17", "-fsyntax-only", "-I"+kernels(), "-I"+emulator(), file)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}
