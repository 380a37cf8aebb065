package multihost

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// Path is how this rank reaches another one.
type Path struct {
	Rank int
	// Carrier is "self", "shm", or a carrier's name.
	Carrier string
	// Device is the carrier's, "" for shared memory.
	Device string
	// Why says why it is this one, in words.
	Why string
	// FellBack: one of the two ranks has, or had, a carrier that it prefers. It may have
	// failed in use.
	FellBack bool
}

// pathTable has the paths of one rendezvous, by rank. That of a link which goes over to
// another carrier changes.
type pathTable struct {
	mu  sync.Mutex
	all []Path
}

func (t *pathTable) list() []Path {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

func (t *pathTable) carrier(rank int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[rank].Carrier
}

// change returns the path as f leaves it.
func (t *pathTable) change(rank int, f func(p *Path)) Path {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.all[rank])
	return t.all[rank]
}

// participants says which ranks take part in a rendezvous, and which of them are local.
type participants struct {
	self    int
	infos   []Info // zero for absent ranks
	present rankset.Set
	local   rankset.Set // this rank included
	why     []string

	survivors bool
	epoch     membership.Epoch // the highest that one of them comes from
}

func (r *participants) remote() rankset.Set { return r.present.Minus(r.local) }

// parseAll reads the metadata of all ranks and compares it with own.
func parseAll(all [][]byte, own *Info) (*participants, error) {
	r := &participants{self: own.Shm.Rank, infos: make([]Info, len(all)), why: make([]string, len(all))}
	if len(all) != own.Shm.NumRanks {
		return nil, fmt.Errorf("%w: metadata of %d ranks given, the group has %d", transport.ErrMismatch, len(all), own.Shm.NumRanks)
	}
	for rank, b := range all {
		if len(b) == 0 {
			continue
		}
		info, err := ParseMetadata(b)
		if err == nil {
			err = info.agrees(rank, own)
		}
		if err == nil {
			err = r.add(rank, &info, own)
		}
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	if !r.present.Has(r.self) || r.infos[r.self].id != own.id {
		return nil, fmt.Errorf("rank %d: %w", r.self, domain.BadMetadata("own entry is not what Metadata returned"))
	}
	return r, nil
}

func (i *Info) agrees(rank int, own *Info) error {
	differ := func(field string, theirs, ours any) error {
		return fmt.Errorf("%w: %s is %v, on rank %d it is %v", transport.ErrMismatch, field, theirs, own.Shm.Rank, ours)
	}
	switch {
	case i.Shm.Rank != rank:
		return domain.BadMetadata("entry %d is the metadata of rank %d", rank, i.Shm.Rank)
	case i.Shm.NumRanks != own.Shm.NumRanks:
		return differ("number of ranks", i.Shm.NumRanks, own.Shm.NumRanks)
	case i.Shm.ABIVersion != own.Shm.ABIVersion:
		return differ("ABI version", i.Shm.ABIVersion, own.Shm.ABIVersion)
	case i.Shm.ControlBytes != own.Shm.ControlBytes:
		return differ("control region in bytes", i.Shm.ControlBytes, own.Shm.ControlBytes)
	case i.Setting != own.Setting:
		return differ("transport", i.Setting, own.Setting)
	case i.Bound != own.Bound:
		return differ("unresponsiveness timeout", i.Bound, own.Bound)
	case i.Protection != own.Protection:
		return differ("protection", i.Protection, own.Protection)
	}
	return nil
}

func (r *participants) add(rank int, info, own *Info) error {
	for first := range rank {
		if r.present.Has(first) && r.infos[first].id == info.id {
			return domain.BadMetadata("id is that of rank %d too", first)
		}
	}
	r.infos[rank] = *info
	r.present = r.present.With(rank)
	if info.Survivor && (!r.survivors || info.Epoch.IsAfter(r.epoch)) {
		r.survivors, r.epoch = true, info.Epoch
	}
	switch differs := own.host.differs(&info.host); {
	case rank == own.Shm.Rank:
		r.local = r.local.With(rank)
		r.why[rank] = "this rank itself"
	case own.Setting == TCP:
		r.why[rank] = "transport is tcp"
	case differs == "":
		r.local = r.local.With(rank)
		r.why[rank] = "the same host, network namespace and user"
	default:
		r.why[rank] = differs
	}
	return nil
}

// turn is how many local ranks have a lower number than this one.
func (r *participants) turn() int { return r.local.And(rankset.Upto(r.self)).Len() }

// localOnly is the metadata of the local ranks, as package shm wants it.
func (r *participants) localOnly() [][]byte {
	all := make([][]byte, len(r.infos))
	for rank := range all {
		if r.local.Has(rank) {
			all[rank] = r.infos[rank].local
		}
	}
	return all
}

// allowed says why this group cannot be connected, before anything is done.
func (r *participants) allowed(cfg *Config) error {
	if r.remote().Empty() {
		return nil
	}
	first := r.remote().Min()
	if cfg.Setting == Shm {
		return fmt.Errorf("rank %d %w: %s, and transport is shm", first, ErrOutOfReach, r.why[first])
	}
	if err := cfg.reachable(); err != nil {
		return fmt.Errorf("rank %d %w: %s, and %w", first, ErrOutOfReach, r.why[first], err)
	}
	for rank := range r.present.All() {
		if !r.infos[rank].Addr.IsValid() {
			return fmt.Errorf("rank %d %w: it has no address for other hosts, or no keys", rank, ErrOutOfReach)
		}
	}
	return nil
}

// ErrOutOfReach means that a rank is on another host and that the settings of
// this rank, or of that one, lead nowhere. Nothing has been tried.
var ErrOutOfReach = errors.New("cannot be reached")
