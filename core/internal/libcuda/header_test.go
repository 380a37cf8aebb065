package libcuda

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// compile builds a C program against the driver's header.
func compile(t *testing.T, source string) (program string) {
	header := testenv.Toolkit(t, "include/cuda.h")
	cc, err := exec.LookPath("cc")
	if err != nil {
		testenv.Lacking(t, "toolkit", "no C compiler for the probe")
	}
	dir := t.TempDir()
	file, program := filepath.Join(dir, "probe.c"), filepath.Join(dir, "probe")
	// With this the header declares symbols under their real names, old ones too.
	source = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n" + source
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	text, err := exec.Command(cc, "-Werror", "-Wno-deprecated-declarations", "-isystem", filepath.Dir(header),
		"-c", "-o", program+".o", file).CombinedOutput()
	require.NoError(t, err, "%s", text)
	return program
}

// TestSignaturesAreThoseOfTheHeader has a C compiler compare every function's
// type with what this package calls.
func TestSignaturesAreThoseOfTheHeader(t *testing.T) {
	var source strings.Builder
	for _, symbol := range slices.Sorted(maps.Keys(signatures)) {
		fmt.Fprintf(&source, "CUresult CUDAAPI (*p_%s)(%s) = %s;\n", symbol, signatures[symbol], symbol)
	}
	compile(t, source.String())
}

// TestEverySymbolHasASignature keeps the two tables together.
func TestEverySymbolHasASignature(t *testing.T) {
	var f functions
	var symbols []string
	for symbol := range f.required() {
		symbols = append(symbols, symbol)
	}
	for symbol := range f.optional() {
		symbols = append(symbols, symbol)
	}
	assert.ElementsMatch(t, symbols, slices.Collect(maps.Keys(signatures)))
	assert.Equal(t, reflect.TypeOf(f).NumField(), len(symbols), "a field without a symbol")
}

// mirrors lists each mirror with its C struct.
var mirrors = map[string]any{
	"CUmemLocation":       MemLocation{},
	"CUmemAllocationProp": AllocationProp{},
	"CUmemAccessDesc":     AccessDesc{},
}

// TestLayoutIsThatOfTheHeader has a C compiler say where everything is.
func TestLayoutIsThatOfTheHeader(t *testing.T) {
	want := maps.Clone(constants)
	for c, mirror := range mirrors {
		typ := reflect.TypeOf(mirror)
		want["sizeof("+c+")"] = int64(typ.Size())
		for f := range typ.Fields() {
			want[fmt.Sprintf("offsetof(%s, %s)", c, f.Tag.Get("c"))] = int64(f.Offset)
			want[fmt.Sprintf("sizeof(((%s *)0)->%s)", c, f.Tag.Get("c"))] = int64(f.Type.Size())
		}
	}
	var source strings.Builder
	source.WriteString("int main(void) {\n")
	for name := range want {
		fmt.Fprintf(&source, "printf(\"%%s=%%lld\\n\", %q, (long long)(%s));\n", name, name)
	}
	source.WriteString("return 0; }\n")
	program := compile(t, source.String())
	text, err := exec.Command("cc", "-o", program, program+".o").CombinedOutput()
	require.NoError(t, err, "%s", text)
	text, err = exec.Command(program).Output()
	require.NoError(t, err)
	got := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		got[name] = value
	}
	for name, value := range want {
		assert.Equal(t, got[name], fmt.Sprint(value), name)
	}
}
