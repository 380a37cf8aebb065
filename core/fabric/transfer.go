package fabric

import (
	"github.com/moewire/moewire/core/op"
)

// Look returns what is known of an operation now. Imm of a Recv is the message's number
// modulo 2^32: the peer's fabric counts what it sends here from 1. A number that never
// comes was lost, or refused to its sender while it sent others. NumBytes of a ReceiveImm
// are those of the write; if the write was cut, those of its last slice.
func (f *Fabric) Look(r op.Ref) (op.Result, error) {
	res, err := f.table.Look(r)
	if err != nil || res.Released {
		return res, err
	}
	f.poller.catchUp(f)
	return f.table.Look(r)
}

// Cancel abandons an operation: every caller that waits for its end wakes up. Its memory
// is the carrier's until it is released. It reports whether this call ended it.
func (f *Fabric) Cancel(r op.Ref) (bool, error) {
	p := f.waitsFor(r)
	won, err := f.table.Cancel(r, nil)
	if p != nil {
		f.withdraw(p, r, op.ErrCancelled)
	}
	return won, err
}

// Drop ends the caller's use of an operation, which is cancelled if it is
// pending. It names nothing from here on.
func (f *Fabric) Drop(r op.Ref) error {
	p := f.waitsFor(r)
	err := f.table.Drop(r)
	if p != nil {
		f.withdraw(p, r, op.ErrCancelled)
	}
	return err
}

// waitsFor returns the peer with the immediate that an operation may be waiting for.
func (f *Fabric) waitsFor(r op.Ref) *peer {
	slot := slotOf(r.RequestID(0))
	if slot >= len(f.work) {
		return nil
	}
	return f.work[slot].waits.Load()
}
