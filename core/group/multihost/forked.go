package multihost

import "github.com/moewire/moewire/core/internal/sys"

// ForkTable is what the fork handler of this process reads: the descriptors that
// a forked child closes, so that sockets end with this process. The handler is
// the caller's, since Go cannot run in a forked child.
type ForkTable = sys.ForkTable

// SetForkTable makes the handler's table known, once, before any listener is
// opened.
func SetForkTable(t *ForkTable) { sys.SetForkTable(t) }
