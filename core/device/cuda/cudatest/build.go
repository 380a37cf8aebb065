package cudatest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moewire/moewire/core/internal/testenv"
)

// Build says which emulator: with which kernels, and what they tell of.
type Build struct {
	// Kernels is the unit that has the kernels, and Sources are patterns of the
	// files that it is made of; the library's if it is empty.
	Kernels string
	Sources []string
	// Watched kernels tell of each access to memory, which takes its time.
	Watched bool
	// Defines are macros of the kernels, such as "NAME=value".
	Defines []string
}

// Benchmarks is the emulator with the kernels of gpubench beside the library's.
func Benchmarks() Build {
	in := filepath.Join(root(), "core", "device", "cuda", "gpubench")
	return Build{
		Kernels: filepath.Join(in, "testdata", "all.cc"),
		Sources: []string{filepath.Join(in, "*", "*.cu")},
	}
}

// root is that of the tree.
func root() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "..", "..")
}

// emulator is the folder of the driver's sources, kernels that of the product's.
func emulator() string { return filepath.Join(root(), "tests", "cudaemu") }
func kernels() string  { return filepath.Join(root(), "core", "device", "cuda", "kernels") }

// Library returns the path of the emulated libcuda.so, compiled unless these
// very sources were before. It skips where a compiler or cuda.h is missing.
func (b Build) Library(t testing.TB) string {
	t.Helper()
	testenv.InTest(t) // kernels on an emulated device take their time
	header := testenv.Toolkit(t, "include/cuda.h")
	cxx, err := exec.LookPath("c++")
	if err != nil {
		testenv.Lacking(t, "c++", "no C++ compiler for the emulator")
	}
	path, err := b.compile(append(flags(t, cxx), "-isystem", filepath.Dir(header)))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// flags are what the emulator is compiled with. The harness of the tests in Python
// (tests/python/harness/emulator.py) reads the same file.
func flags(t testing.TB, cxx string) []string {
	t.Helper()
	common, err := os.ReadFile(filepath.Join(emulator(), "flags"))
	if err != nil {
		t.Fatal(err)
	}
	return append(append([]string{cxx}, strings.Fields(string(common))...), "-I"+kernels(), "-I"+emulator())
}

func (b Build) compile(flags []string) (string, error) {
	name, err := b.name(flags)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "moewire", "emulator")
	path := filepath.Join(cache, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tmp, err := os.MkdirTemp(cache, "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	built, err := b.link(flags, tmp)
	if err != nil {
		return "", err
	}
	return path, os.Rename(built, path) // whole, because other processes look for it
}

// lock waits until no other program builds the same: packages are tested side by side,
// and it takes a processor for half a minute.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// unit is the one that has the kernels.
func (b Build) unit() string {
	if b.Kernels != "" {
		return b.Kernels
	}
	return filepath.Join(emulator(), "kernels.cc")
}

// units are the others, as one file in tmp that includes them: their headers take
// most of the time.
func units(tmp string) (string, error) {
	found, err := filepath.Glob(filepath.Join(emulator(), "*.cc"))
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, unit := range found {
		if filepath.Base(unit) != "kernels.cc" {
			fmt.Fprintf(&text, "#include %q\n", unit)
		}
	}
	path := filepath.Join(tmp, "units.cc")
	return path, os.WriteFile(path, []byte(text.String()), 0o600)
}

// link compiles the kernels by themselves: of their accesses alone the compiler
// tells the emulator.
func (b Build) link(flags []string, tmp string) (string, error) {
	units, err := units(tmp)
	if err != nil {
		return "", err
	}
	object, built := filepath.Join(tmp, "kernels.o"), filepath.Join(tmp, "libcuda.so")
	compile := []string{"-I" + filepath.Dir(filepath.Dir(b.unit())), "-c", "-o", object, b.unit()}
	for _, d := range b.Defines {
		compile = append(compile, "-D"+d)
	}
	if b.Watched {
		compile = append(compile, "-fsanitize=thread")
	}
	for _, args := range [][]string{compile, {"-shared", "-Wl,-Bsymbolic", "-o", built, object, units}} {
		args = append(slices.Clone(flags[1:]), args...)
		if text, err := exec.Command(flags[0], args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, text)
		}
	}
	return built, nil
}

// name is one for what these sources and flags make.
func (b Build) name(flags []string) (string, error) {
	sum := sha256.New()
	fmt.Fprint(sum, flags, b.Watched, b.Defines)
	patterns := []string{filepath.Join(emulator(), "*"), filepath.Join(kernels(), "*.cu*"), b.unit()}
	for _, pattern := range append(patterns, b.Sources...) {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			sum.Write(text)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)[:12]) + ".so", nil
}
