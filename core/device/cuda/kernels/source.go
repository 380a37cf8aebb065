// Package kernels has the sources of the CUDA kernels, and makes code of them:
// ahead of time for the architectures of Targets, or at run time for others.
package kernels

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moewire/moewire/core/internal/libnvrtc"
)

//go:embed *.cu *.cuh
var files embed.FS

// Targets are the architectures that code is made for ahead of time. Code for
// sm_N runs on devices N and later minor versions of the same major one.
var Targets = []string{"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"}

// PTXTarget is what PTX is made for, for devices that none of Targets fits.
const PTXTarget = "compute_80"

// options keep the arithmetic as docs/numerics.md has it: nothing is fused,
// quotients are rounded, subnormals are kept.
var options = []string{
	"--std=c++17", "--fmad=false", "--prec-div=true", "--ftz=false", "--ptxas-options=--verbose",
}

// Digest names the sources and what they are compiled with: code that was made
// of others is not to be mixed with this program's. Its first part is of the
// sources alone.
func Digest() (string, error) {
	src, err := source()
	if err != nil {
		return "", err
	}
	names := make([]string, 0, len(src.Headers))
	for name := range src.Headers {
		names = append(names, name)
	}
	slices.Sort(names)
	sum := sha256.New()
	for _, name := range names {
		fmt.Fprintf(sum, "%s\x00%d\x00%s", name, len(src.Headers[name]), src.Headers[name])
	}
	with := sha256.Sum256([]byte(strings.Join(options, "\x00")))
	return hex.EncodeToString(sum.Sum(nil)) + "-" + hex.EncodeToString(with[:4]), nil
}

// source is one program of all kernels.
func source() (libnvrtc.Source, error) {
	src := libnvrtc.Source{Name: "moewire.cu", Headers: map[string]string{}}
	entries, err := files.ReadDir(".")
	if err != nil {
		return src, err
	}
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			return src, err
		}
		src.Headers[e.Name()] = string(text)
		if strings.HasSuffix(e.Name(), ".cu") {
			src.Text += fmt.Sprintf("#include %q\n", e.Name())
		}
	}
	return src, nil
}

// Image is code for one architecture, and what each kernel uses.
type Image struct {
	Target string
	Code   []byte // a cubin, or PTX with a terminating zero
	Uses   []Use
}

// Use is what one kernel takes of a multiprocessor.
type Use struct {
	Kernel                                      string
	Registers, SharedBytes                      int // per thread; per block, static
	StackBytes, SpillStoreBytes, SpillLoadBytes int // per thread
}

// Compile makes code for a target: "sm_90", or "compute_80" for PTX.
func Compile(lib *libnvrtc.Library, target string) (Image, error) {
	return CompileText(lib, target, "")
}

// hasty are options for a process that waits for the code: the compiler uses all processors.
// Versions before 12.8 or so do not know it. What comes out differs by a few
// bytes of shared memory, so releases do without.
var hasty = []string{"--split-compile=0"}

// CompileHastily is Compile as quickly as the compiler can.
func CompileHastily(lib *libnvrtc.Library, target string) (Image, error) {
	return compileWith(lib, target, "", hasty)
}

// compileWith is for options that the compiler may not know.
func compileWith(lib *libnvrtc.Library, target, text string, more []string) (Image, error) {
	if image, err := compile(lib, target, text, more); err == nil {
		return image, nil
	}
	return compile(lib, target, text, nil)
}

// CompileText is Compile of other kernels, which include this package's headers:
// for benchmarks. "" is Compile.
func CompileText(lib *libnvrtc.Library, target, text string) (Image, error) {
	return compile(lib, target, text, nil)
}

func compile(lib *libnvrtc.Library, target, text string, more []string) (Image, error) {
	src, err := source()
	if err != nil {
		return Image{}, err
	}
	if text != "" {
		src.Text = text
	}
	out, err := lib.Compile(src, slices.Concat([]string{"--gpu-architecture=" + target}, options, more)...)
	if err != nil {
		return Image{}, fmt.Errorf("%s: %w", target, err)
	}
	return Image{Target: target, Code: out.Code, Uses: uses(out.Log)}, nil
}

// What the assembler says of each kernel.
var (
	sayKernel = regexp.MustCompile(`Compiling entry function '(\w+)'`)
	saySpills = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	sayRegs   = regexp.MustCompile(`Used (\d+) registers`)
	sayShared = regexp.MustCompile(`(\d+) bytes smem`)
)

func uses(log string) (all []Use) {
	for line := range strings.Lines(log) {
		if m := sayKernel.FindStringSubmatch(line); m != nil {
			all = append(all, Use{Kernel: m[1]})
			continue
		}
		if len(all) == 0 {
			continue
		}
		u := &all[len(all)-1]
		if m := saySpills.FindStringSubmatch(line); m != nil {
			u.StackBytes, u.SpillStoreBytes, u.SpillLoadBytes = number(m[1]), number(m[2]), number(m[3])
		}
		if m := sayRegs.FindStringSubmatch(line); m != nil {
			u.Registers = number(m[1])
			if m := sayShared.FindStringSubmatch(line); m != nil {
				u.SharedBytes = number(m[1])
			}
		}
	}
	return all
}

func number(s string) int {
	n, _ := strconv.Atoi(s) // the expressions match digits only
	return n
}
