package domain

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

// TestReasonsKeepTheirKind: a rank that is told why another rank gave up can tell the
// same things apart, also when it passes them on.
func TestReasonsKeepTheirKind(t *testing.T) {
	kinds := []error{transport.ErrMismatch, os.ErrDeadlineExceeded, ErrExited, transport.ErrClosed}
	for i, kind := range kinds {
		err := fmt.Errorf("rank 1: %w: ring of 8 bytes", kind)
		for range 2 {
			err = Connecting(Connecting(fmt.Errorf("rank 0 %w", GaveUp(PackReason(err)))))
		}
		require.EqualError(t, err, "connect: rank 0 gave up connecting: rank 1: "+kind.Error()+": ring of 8 bytes", "the cause, and one prefix")
		for j, other := range kinds {
			require.Equal(t, i == j && kind != transport.ErrClosed, errors.Is(err, other), "%v is %v", err, other)
		}
	}
	for _, unknown := range []string{"", "\x00", "\x04x", "\xffx"} {
		err := UnpackReason([]byte(unknown))
		require.Nil(t, errors.Unwrap(err))
	}
}
