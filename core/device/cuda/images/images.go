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
	f, err := finderOf(o)
	if err != nil {
		return nil, "", err
	}
	return f.find(Capability{major, minor}, o)
}

func finderOf(o Options) (*finder, error) {
	digest, err := kernels.Digest()
	if err != nil {
		return nil, err
	}
	archive, err := prebuilt()
	if err != nil {
		return nil, err
	}
	return &finder{digest: digest, archive: archive, load: loadCompiler, cache: newCache(o.cacheDir())}, nil
}

// compiling: a second caller finds what the first one has put into the cache.
var compiling sync.Mutex

// compiler is NVRTC, or what stands for it in tests.
type compiler interface {
	Name() string
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
	c, err := f.choose(on, o)
	if err != nil {
		return nil, "", err
	}
	if c.compiler == nil {
		return c.Code, describe("prebuilt", &c.Image), nil
	}
	code, description, err := f.compiled(c)
	if err != nil {
		return nil, "", noCode(on, append(c.tried, err))
	}
	return code, description, nil
}

func noCode(on Capability, tried []error) error {
	return fmt.Errorf("no code for compute capability %v: %w", on, errors.Join(tried...))
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
func (f *finder) compiled(c choice) ([]byte, string, error) {
	compiling.Lock()
	defer compiling.Unlock()
	image, err := f.cache.get(f.digest, c.Image)
	if err == nil {
		return image.Code, describe("compiled before", &image), nil
	}
	if c.Code, err = c.compiler.compile(c.Target); err != nil {
		return nil, "", fmt.Errorf("%s: %w", c.Compiler, err)
	}
	description := describe("compiled", &c.Image)
	if err := f.cache.put(f.digest, c.Image); err != nil {
		description += fmt.Sprintf(" (not kept: %v)", err)
	}
	return c.Code, description, nil
}
