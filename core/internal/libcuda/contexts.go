package libcuda

import "unsafe"

// RetainPrimary takes a reference to a device's primary context, the one that
// the CUDA runtime and torch use. It makes the context if there is none.
func (l *Library) RetainPrimary(d Device) (Context, error) {
	c := new(Context)
	r := l.call.devicePrimaryCtxRetain.Call(uintptr(unsafe.Pointer(c)), uintptr(d))
	return *c, l.check("cuDevicePrimaryCtxRetain", r)
}

// ReleasePrimary gives a reference back. With the last one the context goes.
func (l *Library) ReleasePrimary(d Device) error {
	return l.check("cuDevicePrimaryCtxRelease_v2", l.call.devicePrimaryCtxRelease.Call(uintptr(d)))
}

// PushContext makes a context the calling thread's. A goroutine must hold its
// thread (runtime.LockOSThread) until PopContext.
func (l *Library) PushContext(c Context) error {
	return l.check("cuCtxPushCurrent_v2", l.call.ctxPushCurrent.Call(uintptr(c)))
}

// PopContext takes the latest context off the calling thread.
func (l *Library) PopContext() error {
	c := new(Context)
	return l.check("cuCtxPopCurrent_v2", l.call.ctxPopCurrent.Call(uintptr(unsafe.Pointer(c))))
}

// Synchronize waits until all work of the current context is done, on all
// streams. It is an error while one of them is captured.
func (l *Library) Synchronize() error {
	return l.check("cuCtxSynchronize", l.call.ctxSynchronize.Call())
}
