//go:build !amd64

package chaos

import "errors"

// canHold: the child needs a wait without memory, which only amd64 has.
const canHold = false

func holdSockets() error { return errors.ErrUnsupported }
