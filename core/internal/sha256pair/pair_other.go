//go:build !amd64

package sha256pair

const accelerated = false

func compress(*[2]state, *state, *[64]uint32, *byte, *byte, int) {
	panic("sha256pair: not on this processor")
}
