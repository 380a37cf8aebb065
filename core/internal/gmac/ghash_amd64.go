package gmac

import "github.com/moewire/moewire/core/internal/sys"

var multiplyBytes = sys.CarrylessMultiplyBytes()

// ghash adds blocks, n bytes at p, n a multiple of 16, to a sum: for each block,
// sum = (sum + block) * h in the field of GHASH. Elements are 16 bytes with the
// highest coefficients first in memory, the reverse of GHASH's blocks. It takes
// the same time whatever the bytes are. The processor must have what multiplyBytes
// says, which is not 0.
func ghash(sum *[16]byte, k *keys, p *byte, n int) {
	if multiplyBytes == 64 {
		ghash512(sum, k, p, n)
	} else {
		ghash256(sum, k, p, n)
	}
}

// ghashCopy is ghash, n a multiple of 512 and not 0, and copies the bytes to where to is: each is loaded once, so that
// the sum is of what was stored, also if another one changes p meanwhile.
func ghashCopy(sum *[16]byte, k *keys, to, p *byte, n int) {
	if multiplyBytes == 64 {
		ghashCopy512(sum, k, to, p, n)
	} else {
		ghashCopy256(sum, k, to, p, n)
	}
}

//go:noescape
func ghash512(sum *[16]byte, k *keys, p *byte, n int)

//go:noescape
func ghash256(sum *[16]byte, k *keys, p *byte, n int)

//go:noescape
func ghashCopy512(sum *[16]byte, k *keys, to, p *byte, n int)

//go:noescape
func ghashCopy256(sum *[16]byte, k *keys, to, p *byte, n int)
