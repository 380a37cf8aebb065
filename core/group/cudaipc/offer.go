package cudaipc

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
)

// process names this process, also among containers that count alike.
var process = sync.OnceValue(func() (id [nonceBytes]byte) {
	rand.Read(id[:]) // never fails
	return id
})

// offered is the memory that ranks of this process offer, by the nonces of
// their memory descriptors.
var offered sync.Map // [nonceBytes]byte to *cuda.Memory

// Offer is a rank's memory, as others can map it. Safe for concurrent use.
type Offer struct {
	memDesc  memDesc
	slab     domain.Segment
	listener *listener
	end      sync.Once
}

// NewOffer lays out a rank's memory descriptor in its domain, as its first slab. The
// memory stays the caller's, which closes the offer first.
func NewOffer(dom domain.Domain, dev *cuda.Device, mem *cuda.Memory) (*Offer, error) {
	o := &Offer{memDesc: memDesc{
		rank: dom.Rank(), numRanks: dom.NumRanks(), numBytes: mem.NumBytes(), process: process(),
	}}
	rand.Read(o.memDesc.nonce[:])
	var err error
	if o.memDesc.device, err = dev.UUID(); err == nil {
		err = o.open(mem)
	}
	if err == nil {
		err = o.layOut(dom)
	}
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// open makes the ways in.
func (o *Offer) open(mem *cuda.Memory) error {
	fd, err := o.name(mem)
	if err != nil {
		return err
	}
	if o.memDesc.ways.bySocket() {
		o.memDesc.socket = "moewire-cuda-" + hex.EncodeToString(o.memDesc.nonce[:])
		if o.listener, err = openListener(o.memDesc.socket, o.memDesc.nonce, fd); err != nil {
			return err
		}
	}
	offered.Store(o.memDesc.nonce, mem)
	return nil
}

// name records in the memory descriptor by which ways the memory can be had. fd: what the listener
// hands out.
func (o *Offer) name(mem *cuda.Memory) (fd *sys.FD, err error) {
	if h, ok := mem.Fabric(); ok {
		o.memDesc.ways |= byFabric
		o.memDesc.handle = h
	}
	if mem.ByDescriptor() {
		o.memDesc.ways |= byFD
		raw, err := mem.Export()
		if err != nil {
			return nil, err
		}
		return sys.Own(raw), nil
	}
	if o.memDesc.ways == 0 {
		o.memDesc.ways = byIPC
		h, err := mem.IPCHandle()
		o.memDesc.handle = h
		return nil, err
	}
	return nil, nil
}

func (o *Offer) layOut(dom domain.Domain) error {
	id, slab, err := dom.AddSlab(slabBytes)
	if err != nil {
		return err
	}
	if id != memDescSlab {
		return fmt.Errorf("the memory descriptor is slab %d of the domain, not %d: it has others already", id, memDescSlab)
	}
	o.slab = slab
	copy(slab.Bytes(memDescOff, memDescBytes), o.memDesc.marshal())
	slab.Word(0).Store(memDescBytes)
	return nil
}

// Holders are the processes that have the memory open by an IPC handle, or may,
// each as often as it has: 0 for one that cannot be seen from here.
func (o *Offer) Holders() (pids []int) {
	if o.listener == nil {
		return nil
	}
	return o.listener.pids()
}

// Close lets no process in any more. What was mapped stays, and Holders still says by
// which processes. Idempotent.
func (o *Offer) Close() error {
	o.end.Do(func() {
		offered.Delete(o.memDesc.nonce)
		if o.listener != nil {
			o.listener.close()
		}
	})
	return nil
}
