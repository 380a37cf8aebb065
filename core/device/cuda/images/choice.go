package images

import (
	"errors"
	"fmt"
	"io/fs"
)

// Least is the compute capability of the oldest devices that the kernels are made
// for. Older ones get no code, though NVRTC might compile some for them.
var Least = Capability{8, 0}

// Describe says what For would give a device. Nothing is compiled, and nothing
// of the cache is changed; the compiler is opened where For would need it.
func Describe(major, minor int, o Options) (string, error) {
	f, err := finderOf(o)
	if err != nil {
		return "", err
	}
	return f.describe(Capability{major, minor}, o)
}

// Compiler says which NVRTC For would compile with, and where it was found.
func Compiler(o Options) (string, error) {
	c, err := loadCompiler(o)
	if err != nil {
		return "", err
	}
	name, err := nameOf(c)
	if err != nil {
		return "", err
	}
	return name + ", " + c.Name(), nil
}

func nameOf(c compiler) (string, error) {
	major, minor, err := c.Version()
	return fmt.Sprintf("NVRTC %d.%d", major, minor), err
}

// choice is what a device gets: code, or what a compiler is to make.
type choice struct {
	Image
	compiler compiler // nil: Code is there
	tried    []error  // what was there before it, and would not do
}

// choose finds the best way to code. The error says all that was tried.
func (f *finder) choose(on Capability, o Options) (choice, error) {
	if err := on.check(); err != nil {
		return choice{}, err
	}
	only, err := o.only()
	if err != nil {
		return choice{}, err
	}
	var tried []error
	if only != onlyCompile {
		image, err := f.prebuilt(on, only)
		if err == nil {
			return choice{Image: image}, nil
		}
		tried = append(tried, err)
	}
	if only == "" || only == onlyCompile {
		c, err := f.toCompile(on, o)
		if c.tried = tried; err == nil {
			return c, nil
		}
		tried = append(tried, err)
	}
	return choice{}, noCode(on, tried)
}

func (c Capability) check() error {
	if c.Major < 1 || c.Minor < 0 || c.Minor > 9 {
		return fmt.Errorf("compute capability %v is none", c)
	}
	if !Least.notAbove(c) {
		return fmt.Errorf("compute capability %v is too old: the kernels need %v or later", c, Least)
	}
	return nil
}

// toCompile is what NVRTC would make.
func (f *finder) toCompile(on Capability, o Options) (choice, error) {
	c, err := f.load(o)
	if err != nil {
		return choice{}, fmt.Errorf("NVRTC: %w", err)
	}
	name, err := nameOf(c)
	if err != nil {
		return choice{}, err
	}
	archs, err := c.Architectures()
	if err != nil {
		return choice{}, err
	}
	t, err := targetOf(on, archs)
	if err != nil {
		return choice{}, fmt.Errorf("%s: %w", name, err)
	}
	return choice{Image: Image{Target: t.String(), Compiler: name}, compiler: c}, nil
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
		if Least.notAbove(c) && c.notAbove(on) && best.notAbove(c) {
			best.Capability = c
		}
	}
	if best.Major == 0 {
		return best, fmt.Errorf("it compiles for %v only, which does not run on %v", archs, on)
	}
	return best, nil
}

func (f *finder) describe(on Capability, o Options) (string, error) {
	c, err := f.choose(on, o)
	if err != nil {
		return "", err
	}
	if c.compiler == nil {
		return describe("prebuilt", &c.Image), nil
	}
	image, err := f.cache.look(f.digest, c.Image)
	if err == nil {
		return describe("compiled before", &image), nil
	}
	text := describe("to be compiled", &c.Image) + ", " + c.compiler.Name()
	if why := f.cache.usable(); why != nil && !errors.Is(why, fs.ErrNotExist) {
		text += fmt.Sprintf(" (and not kept: %v)", why)
	}
	return text, nil
}
