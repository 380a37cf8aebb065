package gmac

import "github.com/moewire/moewire/core/internal/sys"

var isFast = sys.HasWideCarrylessMultiply()

// ghash adds blocks, n bytes at p, n a multiple of 16, to a sum: for each block,
// sum = (sum + block) * h in the field of GHASH. Elements are 16 bytes with the
// highest coefficients first in memory, the reverse of GHASH's blocks. The powers
// are h^32 to h, each times x. It takes the same time whatever the bytes are. The
// processor must have what isFast says.
//
//go:noescape
func ghash(sum *[16]byte, powers *[numPowers][16]byte, p *byte, n int)
