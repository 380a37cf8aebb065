package cpu

import (
	"fmt"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/limits"
)

func check(c *ep.Config) error {
	if err := c.Check(limits.NumSlots); err != nil {
		return err
	}
	if least := c.LeastBytes(); c.NumBytes > 0 && c.NumBytes < least {
		return ep.Invalid("num_ep_buffer_bytes is %d, allowed 0, or at least %d for %d slots", c.NumBytes, least, c.NumSlots)
	}
	return nil
}

const paramsBytes = ep.AgreedBytes + ep.StandingBytes

// Params encodes what ranks must agree on and this rank's Standing, for the
// metadata of a rendezvous.
func Params(c ep.Config, st ep.Standing) ([]byte, error) {
	if err := check(&c); err != nil {
		return nil, err
	}
	return st.Append(c.AppendAgreed(nil)), nil
}

// CheckParams compares every rank's Params with those of rank self. It returns the
// Standing with which their common epoch begins. A nil entry is an absent rank.
func CheckParams(self int, all [][]byte) (next ep.Standing, err error) {
	for rank, other := range all {
		if other != nil && (len(other) != paramsBytes || len(all[self]) != paramsBytes) {
			return next, fmt.Errorf("%w: rank %d sent %d bytes of parameters, this rank %d", ep.ErrMismatch, rank, len(other), len(all[self]))
		}
	}
	return ep.Agree(self, all, 0, ep.AgreedBytes)
}
