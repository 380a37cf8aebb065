package cuda

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// emulator is the driver of emulator/, with what it has for tests.
type emulator struct {
	*libcuda.Library
	fail, calls, seed, report  dl.Func
	watching, sites, leavesOut dl.Func
	path                       string
}

var (
	emulatorOnce sync.Once
	emulated     *emulator
	emulatorErr  error
)

// emulate returns the emulated driver. It is one per process, as a driver is.
func emulate(t testing.TB) *emulator {
	if os.Getenv(testDriver) != "" {
		t.Skip("this test asks more of the driver than a device does: it needs the emulator")
	}
	header := testenv.Toolkit(t, "include/cuda.h")
	cxx, err := exec.LookPath("c++")
	if err != nil {
		testenv.Lacking(t, "c++", "no C++ compiler for the emulator")
	}
	emulatorOnce.Do(func() { emulated, emulatorErr = openEmulator(cxx, filepath.Dir(header)) })
	require.NoError(t, emulatorErr)
	t.Cleanup(func() { require.Empty(t, emulated.said(), "the driver's rules were broken, or something is left") })
	return emulated
}

func openEmulator(cxx, include string) (*emulator, error) {
	path, err := buildEmulator(cxx, include)
	if err != nil {
		return nil, err
	}
	lib, err := dl.Open(path)
	if err != nil {
		return nil, err
	}
	e := &emulator{path: path}
	for name, f := range map[string]*dl.Func{
		"emulator_fail": &e.fail, "emulator_calls": &e.calls, "emulator_seed": &e.seed, "emulator_report": &e.report,
		"emulator_watch": &e.watching, "emulator_sites": &e.sites, "emulator_leave_out": &e.leavesOut,
	} {
		if *f, err = lib.Lookup(name); err != nil {
			return nil, err
		}
	}
	e.Library, err = libcuda.New(lib)
	return e, err
}

// buildEmulator compiles the emulator and the kernels, unless that very source
// was compiled before.
func buildEmulator(cxx, include string) (string, error) {
	units := []string{"emulator/driver.cc", "emulator/fibres.cc", "emulator/races.cc"}
	flags := []string{
		"-std=c++17", "-O1", "-g", "-fPIC", "-pthread", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror",
		"-Wno-unused-parameter", "-Wno-unused-function", "-D__CUDA_API_VERSION_INTERNAL",
		"-Ikernels", "-Iemulator", "-isystem", include,
	}
	sum := sha256.New()
	sum.Write([]byte(strings.Join(append(flags, cxx), " ")))
	for _, pattern := range []string{"emulator/*", "kernels/*.cu*"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			sum.Write(text)
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "moewire", "emulator")
	path := filepath.Join(dir, hex.EncodeToString(sum.Sum(nil)[:12])+".so")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	built, object := filepath.Join(tmp, "libcuda.so"), filepath.Join(tmp, "kernels.o")
	// The compiler tells emulator/races.cc of every access of the kernels.
	for _, args := range [][]string{
		append(flags, "-fsanitize=thread", "-c", "-o", object, "emulator/kernels.cc"),
		append(append(flags, "-shared", "-Wl,-Bsymbolic", "-o", built, object), units...),
	} {
		if text, err := exec.Command(cxx, args...).CombinedOutput(); err != nil {
			return "", &buildError{text: string(text), err: err}
		}
	}
	return path, os.Rename(built, path)
}

type buildError struct {
	text string
	err  error
}

func (e *buildError) Error() string { return e.err.Error() + ": " + e.text }

// said is what the emulator has to say, and forgets.
func (e *emulator) said() string {
	if e.report == 0 {
		return "" // a real driver keeps no such book
	}
	text := e.report.Call()
	return e.withLines(dl.String(text))
}

var offset = regexp.MustCompile(`\+0x[0-9a-f]+`)

// withLines puts lines of the sources where races are told by address.
func (e *emulator) withLines(text string) string {
	return offset.ReplaceAllStringFunc(text, func(at string) string {
		out, err := exec.Command("addr2line", "-s", "-e", e.path, at[1:]).Output()
		if err != nil {
			return at // no such tool
		}
		return strings.TrimSpace(string(out))
	})
}

// failAfter makes a call fail once, after so many that do not.
func (e *emulator) failAfter(call string, n int, code libcuda.Result) {
	name := append([]byte(call), 0)
	e.fail.Call(uintptr(unsafe.Pointer(&name[0])), uintptr(n), uintptr(code))
}

// order seeds the turns of threads: how often of 256 accesses another one goes
// first, and how many blocks are resident.
func (e *emulator) order(seed uint64, yields, blocks int) {
	if e.seed == 0 {
		return // a device goes its own way
	}
	e.seed.Call(uintptr(seed), uintptr(yields), uintptr(blocks))
}

// watch makes every access that nothing orders a breach, as long as the test
// lasts. It comes before the group is made.
func (e *emulator) watch(t testing.TB) {
	e.watching.Call(1)
	t.Cleanup(func() { e.watching.Call(0) })
}

// uses are the uses of ordering that were seen while watching.
func (e *emulator) uses() []string {
	return strings.Split(strings.TrimSpace(dl.String(e.sites.Call())), "\n")
}

// leaveOut makes one of them order nothing; "" none.
func (e *emulator) leaveOut(use string) {
	name := append([]byte(use), 0)
	e.leavesOut.Call(uintptr(unsafe.Pointer(&name[0])))
}

// races is what was found while watching, and forgets.
func (e *emulator) races() (text string) {
	for line := range strings.Lines(e.said()) {
		if strings.Contains(line, "race") {
			text += line
		}
	}
	return text
}
