package libcuda

import (
	"fmt"
	"runtime"
	"unsafe"
)

// jitLogBytes is the room for what the driver's compiler has to say.
const jitLogBytes = 8 << 10

// ModuleLoad loads a cubin, or compiles PTX (with a terminating zero), into the
// current context. The error of PTX has the compiler's own words.
func (l *Library) ModuleLoad(image []byte) (Module, error) {
	log := make([]byte, jitLogBytes)
	var pin runtime.Pinner // the driver finds it through values
	pin.Pin(&log[0])
	defer pin.Unpin()
	options := []int32{JITErrorLogBuffer, JITErrorLogBufferBytes}
	values := []uintptr{uintptr(unsafe.Pointer(&log[0])), jitLogBytes}
	m := new(Module)
	r := l.call.moduleLoadDataEx.Call(uintptr(unsafe.Pointer(m)), uintptr(unsafe.Pointer(&image[0])), uintptr(len(options)),
		uintptr(unsafe.Pointer(&options[0])), uintptr(unsafe.Pointer(&values[0])))
	err := l.check("cuModuleLoadDataEx", r)
	if text := cut(log); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return *m, err
}

// ModuleUnload unloads a module. It synchronises the context.
func (l *Library) ModuleUnload(m Module) error {
	return l.check("cuModuleUnload", l.call.moduleUnload.Call(uintptr(m)))
}

// ModuleFunction finds a kernel by its C name.
func (l *Library) ModuleFunction(m Module, name string) (Function, error) {
	text := append([]byte(name), 0)
	f := new(Function)
	r := l.call.moduleGetFunction.Call(uintptr(unsafe.Pointer(f)), uintptr(m), uintptr(unsafe.Pointer(&text[0])))
	err := l.check("cuModuleGetFunction", r)
	if err != nil {
		err = fmt.Errorf("kernel %s: %w", name, err)
	}
	return *f, err
}
