// Package cudatest has, for tests, a CUDA driver whose device is the CPU: it
// compiles tests/cudaemu and the kernels with the C++ compiler. MOEWIRE_CUDA_TEST
// names a driver, such as libcuda.so.1, that tests run on instead.
package cudatest

import (
	"os"
	"sync"
	"testing"

	"github.com/moewire/moewire/core/device/cuda/images"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// Variable names a driver that tests run on instead of the emulator. `make
// gpu-test` sets it. Ranks that share a device wait for one another:
// CUDA_DEVICE_MAX_CONNECTIONS=32 keeps their streams apart.
const Variable = "MOEWIRE_CUDA_TEST"

// OnDevice tells whether it is set.
func OnDevice() bool { return os.Getenv(Variable) != "" }

// Driver is the emulated driver, with what it has for tests, or a device's,
// which has nothing of that.
type Driver struct {
	*libcuda.Library
	t                               testing.TB // of a device's driver
	path                            string     // of the emulator
	fail, calls, seed, report       dl.Func
	watching, sites, leavesOut      dl.Func
	depth, hurries                  dl.Func
	breaks, relents, reclaims       dl.Func
	called, counts, counted, spoils dl.Func
}

var (
	mu     sync.Mutex
	opened = map[string]*Driver{}
	// contextKept: of the device that tests run on.
	contextKept bool
)

// Open returns the driver that tests run on: the emulator, or what Variable names.
func Open(t testing.TB) *Driver {
	t.Helper()
	return Build{}.Open(t)
}

// Emulate returns the emulator, for tests that ask more of a driver than a
// device does.
func Emulate(t testing.TB) *Driver {
	t.Helper()
	return Build{}.Emulate(t)
}

// Open is that of the package, for a build.
func (b Build) Open(t testing.TB) *Driver {
	t.Helper()
	if !OnDevice() {
		return b.Emulate(t)
	}
	lib, err := libcuda.Load(os.Getenv(Variable))
	if err != nil {
		testenv.Lacking(t, "cuda", err.Error())
	}
	if err := keepContext(lib); err != nil {
		t.Fatal(err)
	}
	return &Driver{Library: lib, t: t}
}

// keepContext holds the device's context until the process ends, as torch does:
// making it takes most of a second (0.8 s on an H100), and each test would.
func keepContext(lib *libcuda.Library) error {
	mu.Lock()
	defer mu.Unlock()
	if contextKept {
		return nil
	}
	if err := lib.Init(); err != nil {
		return err
	}
	dev, err := lib.Device(0)
	if err != nil {
		return err
	}
	_, err = lib.RetainPrimary(dev)
	contextKept = err == nil
	return err
}

// Emulate is that of the package, for a build. There is one such driver per
// process. At the end of the test it wants no rule broken and nothing left.
func (b Build) Emulate(t testing.TB) *Driver {
	t.Helper()
	if OnDevice() {
		t.Skip("this test asks more of the driver than a device does: it needs the emulator")
	}
	d, err := open(b.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if said := d.Said(); said != "" {
			t.Errorf("the driver's rules were broken, or something is left:\n%s", said)
		}
	})
	return d
}

func open(path string) (*Driver, error) {
	mu.Lock()
	defer mu.Unlock()
	if d := opened[path]; d != nil {
		return d, nil
	}
	lib, err := dl.Open(path)
	if err != nil {
		return nil, err
	}
	d := &Driver{path: path}
	for name, f := range map[string]*dl.Func{
		"emulator_fail": &d.fail, "emulator_calls": &d.calls, "emulator_seed": &d.seed, "emulator_report": &d.report,
		"emulator_watch": &d.watching, "emulator_sites": &d.sites, "emulator_leave_out": &d.leavesOut,
		"emulator_depth": &d.depth, "emulator_hurry": &d.hurries,
		"emulator_break": &d.breaks, "emulator_relent": &d.relents, "emulator_reclaim": &d.reclaims,
		"emulator_called": &d.called, "emulator_count": &d.counts, "emulator_spoil": &d.spoils, "emulator_counted": &d.counted,
	} {
		if *f, err = lib.Lookup(name); err != nil {
			return nil, err
		}
	}
	if d.Library, err = libcuda.New(lib); err == nil {
		opened[path] = d
	}
	return d, err
}

// Code is what the device loads: that of this build, as it is chosen for users.
// What the emulator takes for a module has all kernels.
func (d *Driver) Code(t testing.TB) []byte {
	t.Helper()
	if !OnDevice() {
		return []byte("kernels\x00")
	}
	var dev libcuda.Device
	var major, minor int
	var code []byte
	var description string
	for _, f := range []func() error{
		d.Init,
		func() (err error) { dev, err = d.Device(0); return err },
		func() (err error) {
			major, err = d.DeviceAttribute(dev, libcuda.AttrComputeCapabilityMajor)
			return err
		},
		func() (err error) {
			minor, err = d.DeviceAttribute(dev, libcuda.AttrComputeCapabilityMinor)
			return err
		},
		func() (err error) { code, description, err = images.For(major, minor, images.Options{}); return err },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(description)
	return code
}

// Said is what the emulator has to say, and forgets. A device keeps no such book.
func (d *Driver) Said() string {
	if d.report == 0 {
		return ""
	}
	return d.withLines(dl.String(d.report.Call()))
}

// emulated ends a test that asks a device for what the emulator alone has.
func (d *Driver) emulated(f dl.Func) dl.Func {
	if f == 0 {
		d.t.Fatal("the test asks more of the driver than a device does: it begins with cudatest.Emulate")
	}
	return f
}

// Schedule seeds the turns of threads: how often of 256 accesses another one goes
// first, and how many blocks are resident. A device goes its own way.
func (d *Driver) Schedule(seed uint64, yields, blocks int) {
	if d.seed != 0 {
		d.seed.Call(uintptr(seed), uintptr(yields), uintptr(blocks))
	}
}

// Depth is how many launches a stream of the emulator takes before the next one
// waits.
func (d *Driver) Depth(launches int) { d.emulated(d.depth).Call(uintptr(launches)) }
