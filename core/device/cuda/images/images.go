package images

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/moewire/moewire/core/device/cuda/kernels"
)

// Options say where code comes from that was not made ahead of time. The zero
// value is right where NVRTC is installed for all programs.
type Options struct {
	// NVRTC are files or folders that have the compiler, such as those of Python's
	// packages. MOEWIRE_NVRTC and a compiler that the process has open already go
	// before them, the loader's own places and CUDA_HOME behind.
	NVRTC []string
	// CacheDir keeps code that was compiled. "": MOEWIRE_CUDA_CACHE, else a folder
	// of the user's cache. "off": nothing is kept.
	CacheDir string
	// Only is "cubin", "ptx" or "compile" to have code of that kind or none. "":
	// MOEWIRE_CUDA_CODE, else the best that there is.
	Only string
}

// For returns code with all kernels for a device's compute capability: a cubin
// made ahead of time, else such PTX, else what NVRTC makes now or has made
// before. The description says which, for logs. The error says all that was
// tried. Where it compiles it takes seconds. Safe for concurrent use; the code
// is the caller's to read.
func For(major, minor int, o Options) (code []byte, description string, err error) {
	digest, err := kernels.Digest()
	if err != nil {
		return nil, "", err
	}
	archive, err := prebuilt()
	if err != nil {
		return nil, "", err
	}
	f := finder{digest: digest, archive: archive, load: loadCompiler, cache: newCache(o.cacheDir())}
	return f.find(Capability{major, minor}, o)
}

// compiling: a second caller finds what the first one has put into the cache.
var compiling sync.Mutex

// compiler is NVRTC, or what stands for it in tests.
type compiler interface {
	Version() (major, minor int, err error)
	Architectures() ([]int, error)
	compile(target string) ([]byte, error)
}

type finder struct {
	digest  string
	archive []byte // nil: this build has none
	load    func(o Options) (compiler, error)
	cache   *cache
}

// The kinds that Options.Only names.
const (
	onlyCubin   = "cubin"
	onlyPTX     = "ptx"
	onlyCompile = "compile"
)

func (f *finder) find(on Capability, o Options) ([]byte, string, error) {
	if on.Major < 1 || on.Minor < 0 || on.Minor > 9 {
		return nil, "", fmt.Errorf("compute capability %v is none", on)
	}
	only, err := o.only()
	if err != nil {
		return nil, "", err
	}
	var tried []error
	if only != onlyCompile {
		image, err := f.prebuilt(on, only)
		if err == nil {
			return image.Code, describe("prebuilt", &image), nil
		}
		tried = append(tried, err)
	}
	if only == "" || only == onlyCompile {
		code, description, err := f.compiled(on, o)
		if err == nil {
			return code, description, nil
		}
		tried = append(tried, err)
	}
	return nil, "", fmt.Errorf("no code for compute capability %v: %w", on, errors.Join(tried...))
}

func (o *Options) only() (string, error) {
	only := o.Only
	if only == "" {
		only = os.Getenv("MOEWIRE_CUDA_CODE")
	}
	switch only {
	case "", onlyCubin, onlyPTX, onlyCompile:
		return only, nil
	}
	return "", fmt.Errorf("MOEWIRE_CUDA_CODE is %q, allowed are cubin, ptx and compile", only)
}

func describe(how string, image *Image) string {
	t, _ := parseTarget(image.Target) // it was looked at before
	return fmt.Sprintf("%s %s, %s by %s", t.kind(), image.Target, how, image.Compiler)
}

// prebuilt picks code of the archive.
func (f *finder) prebuilt(on Capability, only string) (Image, error) {
	if f.archive == nil {
		return Image{}, errors.New("this build has no prebuilt code")
	}
	all, err := Unpack(f.archive, f.digest)
	if err != nil {
		return Image{}, fmt.Errorf("prebuilt code: %w", err)
	}
	var images []Image
	var targets []target
	for _, image := range all {
		t, err := parseTarget(image.Target)
		if err != nil {
			return Image{}, err
		}
		if only == "" || t.ptx == (only == onlyPTX) {
			images, targets = append(images, image), append(targets, t)
		}
	}
	i := choose(on, targets)
	if i < 0 {
		return Image{}, fmt.Errorf("none of the prebuilt code (%v) runs on it", targets)
	}
	return images[i], nil
}

// compiled gets code from the cache, or else compiles it.
func (f *finder) compiled(on Capability, o Options) ([]byte, string, error) {
	c, err := f.load(o)
	if err != nil {
		return nil, "", fmt.Errorf("NVRTC: %w", err)
	}
	major, minor, err := c.Version()
	if err != nil {
		return nil, "", err
	}
	archs, err := c.Architectures()
	if err != nil {
		return nil, "", err
	}
	name := fmt.Sprintf("NVRTC %d.%d", major, minor)
	t, err := targetOf(on, archs)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	compiling.Lock()
	defer compiling.Unlock()
	want := Image{Target: t.String(), Compiler: name}
	image, why := f.cache.get(f.digest, want)
	if why == nil {
		return image.Code, describe("compiled before", &image), nil
	}
	if want.Code, err = c.compile(want.Target); err != nil {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	description := describe("compiled", &want)
	if err := f.cache.put(f.digest, want); err != nil {
		description += fmt.Sprintf(" (not kept: %v)", err)
	}
	return want.Code, description, nil
}

// targetOf is what a compiler is to make for a device: a cubin if it knows the
// device, else PTX of the latest architecture that is not above it.
func targetOf(on Capability, archs []int) (target, error) {
	best := target{ptx: true}
	for _, arch := range archs {
		c := Capability{arch / 10, arch % 10}
		if c == on {
			return target{Capability: on}, nil
		}
		if c.notAbove(on) && best.notAbove(c) {
			best.Capability = c
		}
	}
	if best.Major == 0 {
		return best, fmt.Errorf("it compiles for %v only, which does not run on %v", archs, on)
	}
	return best, nil
}
