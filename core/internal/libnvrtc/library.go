package libnvrtc

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
)

// Library is the compiler, opened. Safe for concurrent use.
type Library struct {
	name string
	call functions
}

// functions are the symbols, by their C names less "nvrtc".
type functions struct {
	version, errorString                          dl.Func
	createProgram, compileProgram, destroyProgram dl.Func
	logBytes, log, cubinBytes, cubin              dl.Func
	ptxBytes, ptx                                 dl.Func
	numArchs, archs                               dl.Func
}

func (c *functions) required() map[string]*dl.Func {
	return map[string]*dl.Func{
		"nvrtcVersion":              &c.version,
		"nvrtcGetErrorString":       &c.errorString,
		"nvrtcCreateProgram":        &c.createProgram,
		"nvrtcCompileProgram":       &c.compileProgram,
		"nvrtcDestroyProgram":       &c.destroyProgram,
		"nvrtcGetProgramLogSize":    &c.logBytes,
		"nvrtcGetProgramLog":        &c.log,
		"nvrtcGetCUBINSize":         &c.cubinBytes,
		"nvrtcGetCUBIN":             &c.cubin,
		"nvrtcGetPTXSize":           &c.ptxBytes,
		"nvrtcGetPTX":               &c.ptx,
		"nvrtcGetNumSupportedArchs": &c.numArchs,
		"nvrtcGetSupportedArchs":    &c.archs,
	}
}

// Load opens the first of the candidates, sonames or paths, that can be opened.
func Load(candidates ...string) (*Library, error) {
	lib, err := dl.Open(candidates...)
	if err != nil {
		return nil, err
	}
	return New(lib)
}

// New finds the functions of an open library.
func New(lib *dl.Library) (*Library, error) {
	l := &Library{name: lib.Name()}
	if err := lib.LookupAll(l.call.required()); err != nil {
		return nil, err
	}
	return l, nil
}

// Name is the file or soname that was opened.
func (l *Library) Name() string { return l.name }

func (l *Library) check(call string, r uintptr) error {
	if int32(r) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", call, dl.String(l.call.errorString.Call(r)))
}

// Version is the compiler's, such as 13, 2.
func (l *Library) Version() (major, minor int, err error) {
	v := new([2]int32)
	r := l.call.version.Call(uintptr(unsafe.Pointer(&v[0])), uintptr(unsafe.Pointer(&v[1])))
	return int(v[0]), int(v[1]), l.check("nvrtcVersion", r)
}

// Architectures are those it makes code for, such as 90 for sm_90.
func (l *Library) Architectures() ([]int, error) {
	n := new(int32)
	if err := l.check("nvrtcGetNumSupportedArchs", l.call.numArchs.Call(uintptr(unsafe.Pointer(n)))); err != nil {
		return nil, err
	}
	raw := make([]int32, max(*n, 1))
	if err := l.check("nvrtcGetSupportedArchs", l.call.archs.Call(uintptr(unsafe.Pointer(&raw[0])))); err != nil {
		return nil, err
	}
	archs := make([]int, *n)
	for i := range archs {
		archs[i] = int(raw[i])
	}
	return archs, nil
}

// Source is a program and the headers that it includes, by their names.
type Source struct {
	Name, Text string
	Headers    map[string]string
}

// Result is what came out of a compilation. Log holds the compiler's words.
type Result struct {
	Code []byte // a cubin, or PTX with its terminating zero
	Log  string
}

// Compile compiles a source. PTX comes out for an option --gpu-architecture=compute_N,
// a cubin for sm_N. The error has the log.
func (l *Library) Compile(src Source, options ...string) (Result, error) {
	p, err := l.create(src)
	if err != nil {
		return Result{}, err
	}
	defer l.call.destroyProgram.Call(uintptr(unsafe.Pointer(p)))
	var text cStrings
	defer text.free()
	failed := l.check("nvrtcCompileProgram", l.call.compileProgram.Call(*p, uintptr(len(options)), text.array(options)))
	log, err := l.read(*p, "nvrtcGetProgramLog", l.call.logBytes, l.call.log)
	if failed != nil {
		return Result{}, fmt.Errorf("%w: %s", failed, log)
	}
	if err != nil {
		return Result{}, err
	}
	out := Result{Log: string(log)}
	if out.Code, err = l.read(*p, "nvrtcGetCUBIN", l.call.cubinBytes, l.call.cubin); err == nil && len(out.Code) > 0 {
		return out, nil
	}
	out.Code, err = l.read(*p, "nvrtcGetPTX", l.call.ptxBytes, l.call.ptx)
	return out, err
}

func (l *Library) create(src Source) (*uintptr, error) {
	names := make([]string, 0, len(src.Headers))
	for name := range src.Headers {
		names = append(names, name)
	}
	slices.Sort(names)
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = src.Headers[name]
	}
	var text cStrings
	defer text.free()
	p := new(uintptr)
	r := l.call.createProgram.Call(uintptr(unsafe.Pointer(p)), text.one(src.Text), text.one(src.Name),
		uintptr(len(names)), text.array(texts), text.array(names))
	return p, l.check("nvrtcCreateProgram", r)
}

// read gets one of a program's results.
func (l *Library) read(p uintptr, call string, size, get dl.Func) ([]byte, error) {
	n := new(uint64)
	if err := l.check(call+"Size", size.Call(p, uintptr(unsafe.Pointer(n)))); err != nil || *n == 0 {
		return nil, err
	}
	data := make([]byte, *n)
	return data, l.check(call, get.Call(p, uintptr(unsafe.Pointer(&data[0]))))
}
