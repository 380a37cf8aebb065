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

// PrimaryActive reports whether a device's primary context exists. It does not
// make one.
func (l *Library) PrimaryActive(d Device) (bool, error) {
	out := new([2]int32) // flags, active
	r := l.call.devicePrimaryCtxGetState.Call(uintptr(d), uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])))
	return out[1] != 0, l.check("cuDevicePrimaryCtxGetState", r)
}

// CurrentContext is the calling thread's, 0 if it has none.
func (l *Library) CurrentContext() (Context, error) {
	c := new(Context)
	r := l.call.ctxGetCurrent.Call(uintptr(unsafe.Pointer(c)))
	return *c, l.check("cuCtxGetCurrent", r)
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

// EnablePeerAccess lets the current context reach another one's memory.
func (l *Library) EnablePeerAccess(peer Context) error {
	return l.check("cuCtxEnablePeerAccess", l.call.ctxEnablePeerAccess.Call(uintptr(peer), 0))
}

// Synchronize waits until all work of the current context is done, on all
// streams. It is an error while one of them is captured.
func (l *Library) Synchronize() error {
	return l.check("cuCtxSynchronize", l.call.ctxSynchronize.Call())
}

// StreamPriorities are the least and the greatest of the current context; the
// greatest is the smaller number.
func (l *Library) StreamPriorities() (least, greatest int, err error) {
	out := new([2]int32)
	r := l.call.ctxGetStreamPriorityRange.Call(uintptr(unsafe.Pointer(&out[0])), uintptr(unsafe.Pointer(&out[1])))
	return int(out[0]), int(out[1]), l.check("cuCtxGetStreamPriorityRange", r)
}
