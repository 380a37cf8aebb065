package fabric

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/transport"
)

// Sentinels. Of other packages': transport.ErrWouldBlock and op.ErrWouldBlock
// (a bound is reached), endpoint.ErrConnecting (ask again once handshakes have been
// carried), endpoint.ErrUnreachable, transport.ErrNoResource, op.ErrStale,
// transport.ErrMismatch (the peer's fabric has the other mode).
var (
	// ErrInvalid means that an argument is wrong. Nothing has happened.
	ErrInvalid = errors.New("invalid argument")
	// ErrClosed means that the fabric was closed.
	ErrClosed = errors.New("fabric is closed")
	// ErrRegion means that a number names no region.
	ErrRegion = errors.New("no such region")
	// ErrEnded means that the connection ended before the operation did.
	ErrEnded = errors.New("connection ended before the operation did")
	// ErrRefused means that the peer's side has refused: a region that is
	// closed, bounds, access, or a receive that is too short.
	ErrRefused = errors.New("peer refused: region, bounds or access")
	// ErrNoReceive means that the peer had no receive posted, for too long.
	ErrNoReceive = errors.New("peer had no receive posted, for too long")
	// ErrRequest means that this side's carrier could not do it.
	ErrRequest = errors.New("carrier could not do it")
)

var errUnanswered = fmt.Errorf("%w: no answer, or the connection broke", endpoint.ErrUnreachable)

// endOf turns the end of a work request into an error; it makes no text, since
// many end at once when a connection does.
func endOf(s transport.Status) error {
	switch s {
	case transport.StatusOK:
		return nil
	case transport.StatusFlushed:
		return ErrEnded
	case transport.StatusRemote:
		return ErrRefused
	case transport.StatusNoReceive:
		return ErrNoReceive
	case transport.StatusUnreachable:
		return errUnanswered
	}
	return ErrRequest
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}
