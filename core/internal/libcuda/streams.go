package libcuda

import "unsafe"

// StreamCreate makes a stream that does not wait for the legacy one.
func (l *Library) StreamCreate(priority int) (Stream, error) {
	s := new(Stream)
	r := l.call.streamCreateWithPriority.Call(uintptr(unsafe.Pointer(s)), StreamNonBlocking, uintptr(priority))
	return *s, l.check("cuStreamCreateWithPriority", r)
}

// StreamDestroy ends a stream once its work is done.
func (l *Library) StreamDestroy(s Stream) error {
	return l.check("cuStreamDestroy_v2", l.call.streamDestroy.Call(uintptr(s)))
}

// StreamSynchronize waits until all work of a stream is done.
func (l *Library) StreamSynchronize(s Stream) error {
	return l.check("cuStreamSynchronize", l.call.streamSynchronize.Call(uintptr(s)))
}

// StreamQuery is ErrNotReady while a stream has work. Only tests ask, of several packages.
func (l *Library) StreamQuery(s Stream) error {
	return l.check("cuStreamQuery", l.call.streamQuery.Call(uintptr(s)))
}

// EventCreate makes an event.
func (l *Library) EventCreate(flags uint32) (Event, error) {
	e := new(Event)
	r := l.call.eventCreate.Call(uintptr(unsafe.Pointer(e)), uintptr(flags))
	return *e, l.check("cuEventCreate", r)
}

// EventDestroy ends an event.
func (l *Library) EventDestroy(e Event) error {
	return l.check("cuEventDestroy_v2", l.call.eventDestroy.Call(uintptr(e)))
}

// EventQuery is ErrNotReady until all that was recorded is done.
func (l *Library) EventQuery(e Event) error {
	return l.check("cuEventQuery", l.call.eventQuery.Call(uintptr(e)))
}

// EventElapsed is the time between two events, in milliseconds.
func (l *Library) EventElapsed(from, to Event) (float32, error) {
	ms := new(float32)
	r := l.call.eventElapsedTime.Call(uintptr(unsafe.Pointer(ms)), uintptr(from), uintptr(to))
	return *ms, l.check("cuEventElapsedTime", r)
}

// ExchangeCaptureMode says how careful the driver is with the calling thread's
// calls while streams are being captured (CaptureMode*), and returns how it was.
// CaptureModeRelaxed allows all but what captures themselves forbid.
func (l *Library) ExchangeCaptureMode(mode int) (before int, err error) {
	v := new(int32)
	*v = int32(mode)
	r := l.call.threadExchangeStreamCaptureMode.Call(uintptr(unsafe.Pointer(v)))
	return int(*v), l.check("cuThreadExchangeStreamCaptureMode", r)
}
