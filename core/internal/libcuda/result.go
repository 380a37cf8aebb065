package libcuda

import (
	"fmt"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/origin"
)

// Result is a CUresult. As an error it is the driver's word alone; functions
// return an *Error, for which errors.Is(err, Result) holds.
type Result int32

// Those that callers must tell apart.
const (
	Success                    Result = 0
	ErrInvalidValue            Result = 1
	ErrOutOfMemory             Result = 2
	ErrNotInitialized          Result = 3
	ErrDeinitialized           Result = 4
	ErrNoDevice                Result = 100
	ErrInvalidDevice           Result = 101
	ErrInvalidContext          Result = 201
	ErrNoBinaryForGPU          Result = 209
	ErrECCUncorrectable        Result = 214
	ErrPeerAccessUnsupported   Result = 217
	ErrInvalidPTX              Result = 218
	ErrUnsupportedPTXVersion   Result = 222
	ErrInvalidHandle           Result = 400
	ErrNotFound                Result = 500
	ErrNotReady                Result = 600
	ErrIllegalAddress          Result = 700
	ErrLaunchOutOfResources    Result = 701
	ErrLaunchTimeout           Result = 702
	ErrPeerAccessEnabled       Result = 704
	ErrContextIsDestroyed      Result = 709
	ErrHardwareStack           Result = 714
	ErrLaunchFailed            Result = 719
	ErrNotPermitted            Result = 800
	ErrNotSupported            Result = 801
	ErrSystemDriverMismatch    Result = 803
	ErrStreamCaptureUnsupport  Result = 900
	ErrStreamCaptureInvalidate Result = 901
	ErrStreamCaptureMerge      Result = 902
	ErrStreamCaptureUnmatched  Result = 903
	ErrStreamCaptureUnjoined   Result = 904
	ErrStreamCaptureIsolation  Result = 905
	ErrStreamCaptureImplicit   Result = 906
	ErrCapturedEvent           Result = 907
	ErrCaptureWrongThread      Result = 908
)

// Error makes a Result usable with errors.Is.
func (r Result) Error() string { return fmt.Sprintf("CUDA result %d", int32(r)) }

// Error is a call that failed.
type Error struct {
	Call string // the driver's function
	Code Result
	Name string // the driver's, such as CUDA_ERROR_OUT_OF_MEMORY
	Text string // the driver's
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: %v", e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, int32(e.Code), e.Text)
}

// Unwrap is the Result.
func (e *Error) Unwrap() error { return e.Code }

// check makes an error of what a function returned; nil for success.
func (l *Library) check(call string, r uintptr) error {
	code := Result(int32(r))
	if code == Success {
		return nil
	}
	return origin.Mark(&Error{
		Call: call, Code: code, Name: l.text(l.call.getErrorName, code), Text: l.text(l.call.getErrorString, code),
	})
}

// text asks the driver for one of its texts; it has none for unknown codes.
func (l *Library) text(f dl.Func, code Result) string {
	out := new(uintptr)
	if f.Call(uintptr(uint32(code)), uintptr(unsafe.Pointer(out))) != uintptr(Success) {
		return ""
	}
	return dl.String(*out)
}
