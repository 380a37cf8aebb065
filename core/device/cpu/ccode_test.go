//go:build cgo && amd64

package cpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// cc runs the C compiler that cgo uses, with the flags of native.go.
func cc(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("go", "env", "CC").Output()
	if err != nil {
		testenv.Lacking(t, "cc", "go env CC: "+err.Error())
	}
	cmd := append(strings.Fields(string(out)), "-std=c11", "-O3", "-Wall", "-Wextra", "-Werror",
		"-Wno-unused-command-line-argument") // zig's own -c
	if _, err := exec.LookPath(cmd[0]); err != nil {
		testenv.Lacking(t, "cc", err.Error())
	}
	cmd = append(cmd, args...)
	text, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd, " "), err, text)
	}
	return string(text)
}

// Compilers drop wide vectors, or fuse products and sums, without a word: see
// what they made of each file. (The wheel's audit looks at the built library.)
func TestCompiledCode(t *testing.T) {
	fused := regexp.MustCompile(`(?m)^\s+vfn?m(add|sub)`)
	for file, register := range map[string]string{
		"rows16.c": "%xmm", "rows32_amd64.c": "%ymm", "rows64_amd64.c": "%zmm",
	} {
		asm := filepath.Join(t.TempDir(), "rows.s")
		cc(t, "-g0", "-S", "-o", asm, file)
		text, err := os.ReadFile(asm)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), register); n < 100 {
			t.Errorf("%s: only %d uses of %s registers", file, n, register)
		}
		if f := fused.FindString(string(text)); f != "" {
			t.Errorf("%s: fused instruction %s", file, strings.TrimSpace(f))
		}
	}
}

func TestFlushDenormals(t *testing.T) {
	program := filepath.Join(t.TempDir(), "flush")
	cc(t, "-o", program, "testdata/flush.c", "batch.c", "detect.c",
		"rows16.c", "rows32_amd64.c", "rows64_amd64.c")
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
