package cudatest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/libcuda"
)

// codes are all that libcuda knows by name.
var codes = []libcuda.Result{
	libcuda.ErrOutOfMemory, libcuda.ErrInvalidValue, libcuda.ErrNotInitialized, libcuda.ErrDeinitialized,
	libcuda.ErrNoDevice, libcuda.ErrInvalidDevice, libcuda.ErrInvalidContext, libcuda.ErrNoBinaryForGPU,
	libcuda.ErrPeerAccessUnsupported, libcuda.ErrInvalidPTX, libcuda.ErrUnsupportedPTXVersion,
	libcuda.ErrInvalidHandle, libcuda.ErrNotFound, libcuda.ErrNotReady, libcuda.ErrIllegalAddress,
	libcuda.ErrLaunchOutOfResources, libcuda.ErrPeerAccessEnabled, libcuda.ErrContextIsDestroyed,
	libcuda.ErrNotPermitted, libcuda.ErrNotSupported, libcuda.ErrSystemDriverMismatch,
	libcuda.ErrStreamCaptureUnsupport, libcuda.ErrStreamCaptureInvalidate, libcuda.ErrStreamCaptureImplicit,
}

// launches are calls that only begin work, which may break the device after they return.
var launches = []string{"cuLaunchKernel", "cuGraphLaunch", "cuMemcpyHtoDAsync_v2", "cuMemsetD8Async"}

// sticky are the errors of kernels that break a device; a later call returns them.
var sticky = []libcuda.Result{
	libcuda.ErrIllegalAddress, libcuda.ErrLaunchFailed, libcuda.ErrECCUncorrectable,
	libcuda.ErrLaunchTimeout, libcuda.ErrHardwareStack,
}

// unfreed is what the emulator has left after a call that frees has failed. The caller
// cannot know whether such a call has done its work, so it does not make it again.
var unfreed = map[string]string{
	"cuMemFree_v2":                 "allocations left: 1\n",
	"cuMemFreeHost":                "pinned allocations left: 1\n",
	"cuMemUnmap":                   "reserved ranges left: 1\nmapped ranges left: 1\n",
	"cuMemAddressFree":             "reserved ranges left: 1\n",
	"cuMemRelease":                 "handles of memory left: 1\n",
	"cuIpcCloseMemHandle":          "opened allocations left: 1\n",
	"cuModuleUnload":               "modules left: 1\n",
	"cuStreamDestroy_v2":           "streams left: 1\n",
	"cuEventDestroy_v2":            "events left: 1\n",
	"cuGraphDestroy":               "graphs left: 1\n",
	"cuGraphExecDestroy":           "graphs left: 1\n",
	"cuDevicePrimaryCtxRelease_v2": "references to the context left: 1\n",
}

// Sweep has each call of a life fail with each code, at several of the times that it is
// made: once alone, and once so that the device is broken from then on. Calls that launch
// also succeed and break the device, so that a later call returns the error.
type Sweep struct {
	// Life does all that is to be done, up to the first error, and frees everything.
	Life func() error
	// Unheard are calls that work in the background may make and that it can do
	// without: their failures need not be errors of the life.
	Unheard []string
	// Times is about how many times of each call fail.
	Times int
	// Turns: codes take turns, but under MOEWIRE_MUTATIONS=1, for a life that is long.
	Turns bool
	// Short: fewer cases.
	Short bool
}

// failing is one of the cases.
type failing struct {
	call   string
	n      int // after so many that do not fail
	code   libcuda.Result
	breaks bool
	later  bool // the call itself is well
}

func (f failing) String() string {
	if f.later {
		return fmt.Sprintf("what call %d of %s launches breaks the device with %d", f.n, f.call, f.code)
	}
	return fmt.Sprintf("call %d of %s gives %d, and breaks the device: %v", f.n, f.call, f.code, f.breaks)
}

// Run returns the calls that failed. A life does not make each call equally often every
// time, so a few cases may have no effect.
func (s Sweep) Run(t testing.TB, d *Driver) []string {
	t.Helper()
	counts := d.count(t, s.Life)
	failed, cases, missed, begun := map[string]bool{}, 0, 0, time.Now()
	for call, times := range counts {
		for _, f := range s.cases(call, times) {
			cases++
			if s.one(t, d, f) {
				failed[call] = true
			} else {
				missed++
			}
			if t.Failed() {
				t.Fatal(f)
			}
		}
	}
	t.Logf("%d calls, %d cases, of which %d came to nothing, in %v", len(counts), cases, missed, time.Since(begun))
	if missed > cases/10 {
		t.Errorf("%d of %d cases came to nothing", missed, cases)
	}
	return slices.Sorted(maps.Keys(failed))
}

// count counts each call of a life.
func (d *Driver) count(t testing.TB, life func() error) map[string]int {
	if err := life(); err != nil { // once more: all names are known then
		t.Fatal(err)
	}
	before := map[string]int{}
	for _, call := range d.Called() {
		before[call] = d.Calls(call)
	}
	if err := life(); err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for call, n := range before {
		if n = d.Calls(call) - n; n > 0 {
			times[call] = n
		}
	}
	return times
}

// cases are all codes at the first or the last time, and one of them at each of
// some times; a short run has one code per call.
func (s Sweep) cases(call string, times int) (all []failing) {
	at := len(call) // each call begins with another code
	for n := 0; n < times; n += max(1, times/s.Times) {
		at++
		code := sticky[at%len(sticky)]
		all = append(all, failing{call, n, codes[at%len(codes)], false, false}, failing{call, n, code, true, false})
		if slices.Contains(launches, call) {
			all = append(all, failing{call, n, code, true, true})
		}
	}
	if s.Short {
		return all[:min(len(all), 6)]
	}
	if s.Turns && os.Getenv("MOEWIRE_MUTATIONS") != "1" {
		return all
	}
	for i, code := range codes {
		all = append(all, failing{call, i % 2 * (times - 1), code, false, false})
	}
	return all
}

// testTimeout is for a life, which takes milliseconds.
const testTimeout = time.Minute

// one is a case, and whether the call was made to fail.
func (s Sweep) one(t testing.TB, d *Driver, f failing) bool {
	t.Helper()
	switch {
	case f.later:
		d.BreakBehind(f.call, f.n, f.code)
	case f.breaks:
		d.BreakAfter(f.call, f.n, f.code)
	default:
		d.FailAfter(f.call, f.n, f.code)
	}
	ended := make(chan error, 1)
	go func() {
		err := errors.New("a check has failed")
		defer func() { ended <- err }()
		err = s.Life()
	}()
	var err error
	select {
	case err = <-ended:
	case <-time.After(testTimeout):
		t.Fatalf("%v: it hangs", f)
	}
	if d.Relent() {
		return false // it was not made so often this time
	}
	if unheard := slices.Contains(s.Unheard, f.call); err != nil || !unheard {
		checkError(t, f, unheard, err)
	}
	s.checkLeft(t, d, f)
	return true
}

// checkError wants the call, the code, and the driver's words for it. Another call may
// return the code that broke the device, if the error of the first one was not looked at.
func checkError(t testing.TB, f failing, unheard bool, err error) {
	t.Helper()
	for _, of := range allOf(err) {
		if (unheard && f.breaks || f.later || of.Call == f.call) && of.Code == f.code && of.Name != "" && of.Text != "" {
			return
		}
	}
	t.Errorf("%v: the error is %v", f, err)
}

// allOf are the errors of the driver in an error.
func allOf(err error) (all []*libcuda.Error) {
	if of, ok := err.(*libcuda.Error); ok { //nolint:errorlint // each level is looked at
		return append(all, of)
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // so is this
		for _, e := range many.Unwrap() {
			all = append(all, allOf(e)...)
		}
		return all
	}
	if one := errors.Unwrap(err); one != nil {
		return allOf(one)
	}
	return nil
}

func (s Sweep) checkLeft(t testing.TB, d *Driver, f failing) {
	t.Helper()
	want := unfreed[f.call]
	if f.breaks && f.call != "cuDevicePrimaryCtxRelease_v2" {
		want = "" // the context has gone, and with it all that it had
	}
	if said := d.Said(); said != want {
		t.Errorf("%v: the driver says %q, expected %q", f, said, want)
	}
	if want != "" {
		d.Reclaim()
	}
}
