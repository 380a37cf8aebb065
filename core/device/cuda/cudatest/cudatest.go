// Package cudatest has, for tests, a CUDA driver whose device is the CPU: it
// compiles emulator/ and the kernels with the C++ compiler.
package cudatest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// Image is what the emulator takes for a module with all kernels.
var Image = []byte("kernels\x00")

// Driver is the emulated driver, with what it has for tests.
type Driver struct {
	*libcuda.Library
	fail, calls, seed, report dl.Func
}

var (
	once     sync.Once
	driver   *Driver
	buildErr error
)

// Emulate returns the emulated driver: one per process, as a driver is. At the
// end of the test it wants no rule broken and nothing left.
func Emulate(t testing.TB) *Driver {
	t.Helper()
	cxx, header := compiler(t)
	once.Do(func() { driver, buildErr = open(cxx, filepath.Dir(header)) })
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	t.Cleanup(func() {
		if said := driver.Said(); said != "" {
			t.Errorf("the driver's rules were broken, or something is left:\n%s", said)
		}
	})
	return driver
}

// Library returns the path of the emulated libcuda.so, for other programs.
func Library(t testing.TB) string {
	t.Helper()
	cxx, header := compiler(t)
	path, err := Build(cxx, filepath.Dir(header))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func compiler(t testing.TB) (cxx, header string) {
	t.Helper()
	header = testenv.Toolkit(t, "include/cuda.h")
	cxx, err := exec.LookPath("c++")
	if err != nil {
		testenv.Lacking(t, "c++", "no C++ compiler for the emulator")
	}
	return cxx, header
}

func open(cxx, include string) (*Driver, error) {
	path, err := Build(cxx, include)
	if err != nil {
		return nil, err
	}
	lib, err := dl.Open(path)
	if err != nil {
		return nil, err
	}
	d := &Driver{}
	for name, f := range map[string]*dl.Func{
		"emulator_fail": &d.fail, "emulator_calls": &d.calls, "emulator_seed": &d.seed, "emulator_report": &d.report,
	} {
		if *f, err = lib.Lookup(name); err != nil {
			return nil, err
		}
	}
	d.Library, err = libcuda.New(lib)
	return d, err
}

// Build compiles the emulator and the kernels with a C++ compiler and a folder
// that has cuda.h, unless that very source was compiled before.
func Build(cxx, include string) (string, error) {
	_, here, _, _ := runtime.Caller(0)
	dir := filepath.Dir(filepath.Dir(here))
	units, err := filepath.Glob(filepath.Join(dir, "emulator/*.cc"))
	if err != nil {
		return "", err
	}
	flags := []string{
		"-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
		"-Wno-unused-parameter", "-Wno-unused-function", "-D__CUDA_API_VERSION_INTERNAL",
		"-Ikernels", "-Iemulator", "-isystem", include,
	}
	name, err := nameOf(dir, strings.Join(append(flags, cxx), " "))
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
	tmp, err := os.MkdirTemp(cache, "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	built := filepath.Join(tmp, "libcuda.so")
	cmd := exec.Command(cxx, append(append(flags, "-o", built), units...)...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return path, os.Rename(built, path)
}

// nameOf is a name for what these sources and flags make.
func nameOf(dir, flags string) (string, error) {
	sum := sha256.New()
	sum.Write([]byte(flags))
	for _, pattern := range []string{"emulator/*", "kernels/*.cu*"} {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
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

// Said is what the emulator has to say, and forgets.
func (d *Driver) Said() string { return dl.String(d.report.Call()) }

// FailAfter makes a call fail once, after so many that do not.
func (d *Driver) FailAfter(call string, n int, code libcuda.Result) {
	name := append([]byte(call), 0)
	d.fail.Call(uintptr(unsafe.Pointer(&name[0])), uintptr(n), uintptr(code))
}

// Calls is how often a function was called so far.
func (d *Driver) Calls(call string) int {
	name := append([]byte(call), 0)
	return int(d.calls.Call(uintptr(unsafe.Pointer(&name[0]))))
}

// Order seeds the turns of threads: how often of 256 accesses another one goes
// first, and how many blocks are resident.
func (d *Driver) Order(seed uint64, yields, blocks int) {
	d.seed.Call(uintptr(seed), uintptr(yields), uintptr(blocks))
}

// Slice is n values of emulated device memory: it is memory of this process.
func Slice[T any](address uint64, n int) []T { return unsafe.Slice(dl.At[T](uintptr(address)), n) }
