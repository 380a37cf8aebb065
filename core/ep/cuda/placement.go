package cuda

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/moewire/moewire/core/ep"
)

// Placement is how rows get their places in an owner's memory. All ranks of a group
// have the same: rows of two different placements would overwrite one another.
type Placement uint

const (
	// PlacementOpen: nothing was agreed on; it means PlacementFirstCome.
	PlacementOpen Placement = iota
	// PlacementFirstCome: the rank that comes first has the first places. Each rank adds to
	// a counter in the owner's memory, so all devices need native atomics with one another.
	PlacementFirstCome
	// PlacementByCounts is the placement of Deterministic: ranks store how many rows they
	// have, and the owner answers. No rank changes another's memory but by stores.
	PlacementByCounts
	lastPlacement = PlacementByCounts
)

// ordered is whether dispatches are by counts.
func (c *Config) ordered() bool { return c.Deterministic || c.Placement == PlacementByCounts }

// Params is that of the buffer's Config, for a later rendezvous.
func (b *Buffer) Params(st ep.Standing) ([]byte, error) { return b.cfg.Params(st) }

// AgreePlacement says which placement the epoch has: the same on every rank. It takes
// the Params of one rendezvous that CheckParams has accepted. sameHost tells which
// ranks share memory; the others are reached by messages and use no atomics. why is a
// text for users: which pair has made it PlacementByCounts, or "" if the ranks were
// asked for that.
//
// A group keeps the placement that it has begun with, because recorded graphs have it.
// A group that has begun with PlacementFirstCome refuses devices that cannot have it.
func AgreePlacement(all [][]byte, sameHost func(a, b int) bool) (o Placement, why string, err error) {
	began, err := begun(all)
	if err != nil {
		return o, "", err
	}
	if number(firstOf(all), deterministicOff) == 1 {
		return PlacementByCounts, "", nil
	}
	a, b := lacking(all, sameHost)
	why = fmt.Sprintf("the devices of ranks %d and %d have no native atomics with each other that their processes know of", a, b)
	switch {
	case a < 0 && began != PlacementByCounts:
		return PlacementFirstCome, "", nil
	case a < 0:
		return PlacementByCounts, "the group has begun so", nil
	case began == PlacementFirstCome:
		return o, "", ep.Invalid("%s, and the group has begun with dispatches that need them; "+
			"allowed are devices that have them, or deterministic on all ranks", why)
	}
	return PlacementByCounts, why, nil
}

// begun is the placement of the ranks that were in an epoch; PlacementOpen: there were
// none.
func begun(all [][]byte) (o Placement, err error) {
	for rank, params := range all {
		theirs := Placement(number(params, placementOff))
		switch {
		case params == nil || theirs == PlacementOpen || theirs == o:
		case theirs > lastPlacement || o != PlacementOpen:
			return o, fmt.Errorf("%w: order of rows is %d on rank %d, and %d on another one", ep.ErrMismatch, theirs, rank, o)
		default:
			o = theirs
		}
	}
	return o, nil
}

// lacking is the first pair of ranks that have no native atomics between their
// devices, as far as either of them knows; negative: there is none.
func lacking(all [][]byte, sameHost func(a, b int) bool) (int, int) {
	for b := range all {
		for a := range b {
			if all[a] != nil && all[b] != nil && sameHost(a, b) && !linked(all[a], all[b]) {
				return a, b
			}
		}
	}
	return -1, -1
}

// linked is whether a rank may use atomics in the memory of another one. One of them
// may not see the other's device.
func linked(a, b []byte) bool {
	own, other := number(a, deviceOff), number(b, deviceOff)
	return own == other || names(a, other) || names(b, own)
}

func names(params []byte, device uint64) bool {
	for i := range maxNative {
		if number(params, nativeOff+8*i) == device {
			return device != 0
		}
	}
	return false
}

func number(params []byte, off int) uint64 {
	if params == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(params[off:])
}

func firstOf(all [][]byte) []byte {
	return all[slices.IndexFunc(all, func(params []byte) bool { return params != nil })]
}

// checkLink refuses a rank's device where nothing was agreed on and PlacementFirstCome
// would lose rows.
func (b *Buffer) checkLink(rank int, device uint64) error {
	if b.cfg.Placement != PlacementOpen || b.cfg.Deterministic {
		return nil
	}
	links, err := b.dev.Links()
	if err != nil {
		return err
	}
	if device == links.Device || slices.Contains(links.Native, device) {
		return nil
	}
	return ep.Invalid("the device of rank %d has no native atomics with that of rank %d, as far as this process knows; allowed with deterministic set, or on devices that have them", rank, b.self)
}
