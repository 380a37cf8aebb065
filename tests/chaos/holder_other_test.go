//go:build !amd64

package chaos

import "errors"

// holdSockets needs a wait without memory, which only amd64 has.
func holdSockets() error { return errors.ErrUnsupported }
