//go:build !amd64

package gmac

const isFast = false

func ghash(*[16]byte, *[numPowers][16]byte, *byte, int) { panic("gmac: not on this processor") }
