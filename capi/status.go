package main

// #include "internal.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	uatomic "go.uber.org/atomic"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/fabric"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/node"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/origin"
	"github.com/moewire/moewire/core/store/client"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/transport"
)

var (
	errHandle = errors.New("unknown or closed id")
	errPanic  = errors.New("defect in the library")
)

// statuses are tried in order, because an error may wrap its cause.
var statuses = []struct {
	err    error
	status C.mw_status_t
}{
	{ep.ErrInProgress, C.MW_IN_PROGRESS},
	{errNone, C.MW_IN_PROGRESS},
	{errPanic, C.MW_ERR_PANIC},
	{errHandle, C.MW_ERR_HANDLE},
	{ep.ErrNoHandle, C.MW_ERR_HANDLE},
	{ep.ErrClosed, C.MW_ERR_CLOSED},
	{transport.ErrClosed, C.MW_ERR_CLOSED},
	{ep.ErrStaleHandle, C.MW_ERR_STALE_HANDLE},
	{ep.ErrInvalid, C.MW_ERR_INVALID_ARGUMENT},
	{layout.ErrShape, C.MW_ERR_INVALID_ARGUMENT},
	{os.ErrDeadlineExceeded, C.MW_ERR_TIMEOUT},
	{multihost.ErrOutOfReach, C.MW_ERR_INVALID_ARGUMENT},
	{domain.ErrExited, C.MW_ERR_PEER_LOST},
	{ep.ErrLost, C.MW_ERR_PEER_LOST},
	{ep.ErrMismatch, C.MW_ERR_PEER_MISMATCH},
	{transport.ErrMismatch, C.MW_ERR_PEER_MISMATCH},
	{ep.ErrFenced, C.MW_ERR_FENCED},
	{ep.ErrUpdating, C.MW_ERR_UPDATING},
	{ep.ErrNotCombined, C.MW_ERR_NOT_COMBINED},
	{ep.ErrHeld, C.MW_ERR_BUSY},
	{op.ErrFull, C.MW_ERR_WOULD_BLOCK},
	{domain.ErrMetadata, C.MW_ERR_METADATA},
	{op.ErrCancelled, C.MW_ERR_CANCELLED},
	{syscall.ENOMEM, C.MW_ERR_NO_MEMORY},
	{syscall.EMFILE, C.MW_ERR_NO_RESOURCE},
	{syscall.ENFILE, C.MW_ERR_NO_RESOURCE},
	{syscall.ENOSPC, C.MW_ERR_NO_RESOURCE},
	{syscall.ENOBUFS, C.MW_ERR_NO_RESOURCE},
	// Errors of fabrics.
	{fabric.ErrClosed, C.MW_ERR_CLOSED},
	{endpoint.ErrClosed, C.MW_ERR_CLOSED},
	{fabric.ErrInvalid, C.MW_ERR_INVALID_ARGUMENT},
	{fabric.ErrRegion, C.MW_ERR_HANDLE},
	{op.ErrStale, C.MW_ERR_HANDLE},
	{endpoint.ErrHandshake, C.MW_ERR_METADATA},
	{transport.ErrNotSupported, C.MW_ERR_NOT_SUPPORTED},
	{endpoint.ErrConnecting, C.MW_ERR_CONNECTING},
	{fabric.ErrRefused, C.MW_ERR_REFUSED},
	{fabric.ErrEnded, C.MW_ERR_UNREACHABLE},
	{fabric.ErrNoReceive, C.MW_ERR_UNREACHABLE},
	{transport.ErrNoResource, C.MW_ERR_NO_RESOURCE},
	{endpoint.ErrDisabled, C.MW_ERR_NO_RESOURCE},
	{endpoint.ErrUnreachable, C.MW_ERR_UNREACHABLE},
	{transport.ErrWouldBlock, C.MW_ERR_WOULD_BLOCK},
	{op.ErrWouldBlock, C.MW_ERR_WOULD_BLOCK},
	{transport.ErrBusy, C.MW_ERR_BUSY},
	// Errors of the block store.
	{client.ErrClosed, C.MW_ERR_CLOSED},
	{client.ErrArgument, C.MW_ERR_INVALID_ARGUMENT},
	{client.ErrWouldBlock, C.MW_ERR_WOULD_BLOCK},
	{client.ErrRefused, C.MW_ERR_REFUSED},
	{medium.ErrInUse, C.MW_ERR_BUSY},
	{medium.ErrForeign, C.MW_ERR_METADATA},
	// Errors of CUDA.
	{cuda.ErrNoDevice, C.MW_ERR_NO_DEVICE},
	{cuda.ErrNoMemory, C.MW_ERR_NO_MEMORY},
}

func statusOf(err error) C.mw_status_t {
	for i := range statuses {
		if errors.Is(err, statuses[i].err) {
			return statuses[i].status
		}
	}
	if cuda.IsFailure(err) {
		return C.MW_ERR_DEVICE
	}
	return C.MW_ERR_SYSTEM
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ep.ErrInvalid}, args...)...)
}

// report turns a Go error into a status and this thread's last error.
func report(err error) C.mw_status_t {
	if err == nil {
		return C.MW_OK // on the way of every call, so this much is inlined
	}
	return reportError(err)
}

func reportError(err error) C.mw_status_t {
	if err == ep.ErrInProgress || err == errNone {
		return C.MW_IN_PROGRESS // not a failure: the last error stays
	}
	text := oneLine(inWords(err))
	if stack := origin.Of(err); stack != "" {
		text += "\nbegan at" + stack
	}
	C.mwi_set_error((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
	return statusOf(err)
}

// inWords is the text of an error. It names the field of a configuration as the header
// does.
func inWords(err error) string {
	var f *node.FieldError
	if errors.As(err, &f) {
		return strings.Replace(err.Error(), f.Field+f.Problem, "config->"+f.Field+f.Problem, 1)
	}
	return err.Error()
}

// oneLine joins the lines of several errors; a NUL would end the text in C.
func oneLine(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "\n", "; "), "\x00", `\0`)
}

// guarded is the object that a panic makes unusable: a buffer, a fabric, a client or a server
// of the block store.
type guarded interface {
	poison(err error)
	poisoned() error
}

// poisonable is what all guarded objects have.
type poisonable struct{ broken uatomic.Error }

func (p *poisonable) poisoned() error  { return p.broken.Load() }
func (p *poisonable) poison(err error) { p.broken.CompareAndSwap(nil, err) }

// on runs an exported function that works on an object of a table. A panic must not unwind
// into C: it becomes an error, and the object takes no more calls.
func on[T guarded](t *table[T], id uint64, f func(T) error) (status C.mw_status_t) {
	o, err := t.get(id)
	if err != nil {
		return report(err)
	}
	defer rescue(o, &status)
	if err := o.poisoned(); err != nil {
		return report(err)
	}
	return report(f(o))
}

// guard is on for an object that is known, or for none.
func guard(b guarded, f func() error) (status C.mw_status_t) {
	defer rescue(b, &status)
	if b != nil {
		if err := b.poisoned(); err != nil {
			return report(err)
		}
	}
	return report(f())
}

// rescue is deferred: it ends a panic.
func rescue(b guarded, status *C.mw_status_t) {
	if r := recover(); r != nil {
		*status = hurt(b, r)
	}
}

// hurt makes an error of a panic; the guarded object, if there is one, takes no more calls.
func hurt(b guarded, r any) C.mw_status_t {
	err := origin.MarkPanic(fmt.Errorf("%w: %v", errPanic, r))
	if b != nil {
		b.poison(err)
	}
	return report(err)
}
