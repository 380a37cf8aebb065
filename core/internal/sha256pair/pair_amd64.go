package sha256pair

import "github.com/moewire/moewire/core/internal/sys"

var accelerated = sys.HasSHA256()

// compress takes n blocks at p, and as many at q, into the same state, and writes what becomes of it with each. n is not
// 0. The processor must have what sys.HasSHA256 says.
//
//go:noescape
func compress(out *[2]state, from *state, k *[64]uint32, p, q *byte, n int)
