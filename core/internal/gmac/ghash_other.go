//go:build !amd64

package gmac

var multiplyBytes = 0

func ghash(*[16]byte, *keys, *byte, int) { panic("gmac: not on this processor") }

func ghashCopy(*[16]byte, *keys, *byte, *byte, int) { panic("gmac: not on this processor") }
