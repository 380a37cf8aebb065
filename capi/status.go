package main

// #include "internal.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"unsafe"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

var (
	errHandle = errors.New("unknown or closed id")
	errPanic  = errors.New("defect in the library")
)

// statuses are tried in order: an error may wrap its cause.
var statuses = []struct {
	err    error
	status C.mw_status_t
}{
	{ep.ErrInProgress, C.MW_IN_PROGRESS},
	{errPanic, C.MW_ERR_PANIC},
	{errHandle, C.MW_ERR_HANDLE},
	{ep.ErrNoHandle, C.MW_ERR_HANDLE},
	{ep.ErrClosed, C.MW_ERR_CLOSED},
	{transport.ErrClosed, C.MW_ERR_CLOSED},
	{ep.ErrStaleHandle, C.MW_ERR_STALE_HANDLE},
	{ep.ErrInvalid, C.MW_ERR_INVALID_ARGUMENT},
	{layout.ErrShape, C.MW_ERR_INVALID_ARGUMENT},
	{os.ErrDeadlineExceeded, C.MW_ERR_TIMEOUT},
	{transport.ErrDead, C.MW_ERR_PEER_LOST},
	{ep.ErrMismatch, C.MW_ERR_PEER_MISMATCH},
	{transport.ErrMismatch, C.MW_ERR_PEER_MISMATCH},
	{ep.ErrFenced, C.MW_ERR_FENCED},
	{ep.ErrUpdating, C.MW_ERR_UPDATING},
	{ep.ErrNotCombined, C.MW_ERR_NOT_COMBINED},
	{transport.ErrMetadata, C.MW_ERR_METADATA},
	{op.ErrCancelled, C.MW_ERR_CANCELLED},
	{syscall.ENOMEM, C.MW_ERR_NO_MEMORY},
}

func statusOf(err error) C.mw_status_t {
	for i := range statuses {
		if errors.Is(err, statuses[i].err) {
			return statuses[i].status
		}
	}
	return C.MW_ERR_SYSTEM
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ep.ErrInvalid}, args...)...)
}

// report turns a Go error into a status and this thread's last error.
func report(err error) C.mw_status_t {
	if err == nil {
		return C.MW_OK
	}
	if err == ep.ErrInProgress {
		return C.MW_IN_PROGRESS // not a failure: the last error stays
	}
	text := err.Error()
	C.mwi_set_error((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
	return statusOf(err)
}

// guard runs an exported function. A panic must not unwind into C: it becomes
// an error, and the buffer in whose call it happened takes no more calls.
func guard(b *buffer, f func() error) (status C.mw_status_t) {
	defer func() {
		if r := recover(); r != nil {
			err := fmt.Errorf("%w: %v\n%s", errPanic, r, debug.Stack())
			if b != nil {
				b.poison(err)
			}
			status = report(err)
		}
	}()
	if b != nil {
		if err := b.poisoned(); err != nil {
			return report(err)
		}
	}
	return report(f())
}
