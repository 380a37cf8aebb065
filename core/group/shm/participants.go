package shm

import (
	"bytes"
	"fmt"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// participants says which ranks take part in a rendezvous.
type participants struct {
	infos   []Info // by rank; zero for absent ones
	present rankset.Set
}

func (r *participants) has(rank int) bool {
	return rank >= 0 && rank < len(r.infos) && r.present.Has(rank)
}

// next is the rank behind a rank, the lowest one behind the last; the rank itself if it is alone.
func (r *participants) next(rank int) int {
	for i := 1; i < len(r.infos); i++ {
		if at := (rank + i) % len(r.infos); r.has(at) {
			return at
		}
	}
	return rank
}

// source is the rank with the members page that every rank takes: the lowest survivor, or
// the lowest of all when none comes from an earlier rendezvous.
func (r *participants) source() int {
	for i := range r.infos {
		if r.has(i) && r.infos[i].Survivor {
			return i
		}
	}
	return r.present.Min()
}

// parseAll reads the metadata of all ranks (empty: absent) and compares it
// with own, this rank's. It touches nothing else. Errors name the rank and
// the field.
func parseAll(all [][]byte, own *Info) (*participants, error) {
	if len(all) != own.NumRanks {
		return nil, fmt.Errorf("%w: metadata of %d ranks given, the group has %d",
			transport.ErrMismatch, len(all), own.NumRanks)
	}
	r := &participants{infos: make([]Info, len(all))}
	for rank := range all {
		if len(all[rank]) == 0 {
			continue
		}
		if err := r.add(rank, all[rank], own); err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	if !bytes.Equal(all[own.Rank], own.marshal()) {
		return nil, fmt.Errorf("rank %d: %w", own.Rank, domain.BadMetadata("own entry is not what Metadata returned: absent, or an earlier or another listener's"))
	}
	return r, nil
}

func (r *participants) add(rank int, metadata []byte, own *Info) error {
	info, err := ParseMetadata(metadata)
	if err != nil {
		return err
	}
	if err := info.agrees(rank, own); err != nil {
		return err
	}
	for first := range rank {
		switch {
		case !r.has(first):
		case info.Nonce == r.infos[first].Nonce:
			return domain.BadMetadata("nonce is that of rank %d too", first)
		case info.Identity == r.infos[first].Identity:
			return domain.BadMetadata("identity is that of rank %d too", first)
		}
	}
	r.infos[rank] = info
	r.present = r.present.With(rank)
	return nil
}

// agrees compares what must be equal on all ranks.
func (i *Info) agrees(index int, own *Info) error {
	differ := func(field string, theirs, ours any) error {
		return fmt.Errorf("%w: %s is %v, on rank %d it is %v", transport.ErrMismatch, field, theirs, own.Rank, ours)
	}
	switch {
	case i.ABIVersion != own.ABIVersion:
		return differ("ABI version", i.ABIVersion, own.ABIVersion)
	case i.Rank != index:
		return domain.BadMetadata("entry %d is the metadata of rank %d", index, i.Rank)
	case i.NumRanks != own.NumRanks:
		return differ("number of ranks", i.NumRanks, own.NumRanks)
	case i.ControlBytes != own.ControlBytes:
		return differ("control region in bytes", i.ControlBytes, own.ControlBytes)
	}
	return nil
}
