package cpu

import (
	"fmt"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/limits"
)

// Stores says how placed rows are stored.
type Stores int

// The ways to store.
const (
	StoresAuto      Stores = iota // streaming from streamFrom bytes on, where there is such a thing
	StoresCached                  // ordinary stores: rows stay in the caches
	StoresStreaming               // past the caches
)

// NoPrefetch asks for nothing ahead of use.
const NoPrefetch = -1

// Options are choices that change times and no results.
type Options struct {
	Width    int // as New's
	Stores   Stores
	Prefetch int // rows that are asked for ahead of use; 0: the default, none
	Threads  int // that place and reduce, the caller's included; 0: 1
}

// Open returns kernels with these options, which must be closed, or what
// Check says.
func Open(o Options) (device.Kernels, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.plainGo() {
		return NewReference(), nil
	}
	if o.Width == Widest {
		o.Width = Widths()[len(Widths())-1]
	}
	return newNative(o), nil
}

// Check names the first option that is not possible here, and what is.
func (o Options) Check() error {
	switch {
	case o.Stores < StoresAuto || o.Stores > StoresStreaming:
		return fmt.Errorf("stores is %d, allowed %d (auto), %d (cached) and %d (streaming)",
			o.Stores, StoresAuto, StoresCached, StoresStreaming)
	case !limits.Prefetch.Has(int64(o.Prefetch)):
		return limits.Prefetch.Check(int64(o.Prefetch))
	case !limits.NumThreads.Has(int64(o.Threads)):
		return limits.NumThreads.Check(int64(o.Threads))
	case o.plainGo():
		return o.checkPlainGo()
	case o.Width != Widest && !hasNative(o.Width):
		return fmt.Errorf("vector_width is %d, allowed here: bytes of %v, %d (the widest) and %d (plain Go)",
			o.Width, Widths(), Widest, Reference)
	case o.Stores == StoresStreaming && !canStream:
		return fmt.Errorf("stores is %d (streaming), and this architecture has no such stores", o.Stores)
	}
	return nil
}

func (o Options) plainGo() bool {
	return o.Width == Reference || (o.Width == Widest && len(Widths()) == 0)
}

func (o Options) checkPlainGo() error {
	switch {
	case o.Stores == StoresStreaming:
		return fmt.Errorf("stores is %d (streaming), which the plain Go kernels (vector_width) do not have", o.Stores)
	case o.Prefetch > 0:
		return fmt.Errorf("prefetch is %d rows, which the plain Go kernels (vector_width) do not have", o.Prefetch)
	case o.Threads > 1:
		return fmt.Errorf("num_threads is %d, which the plain Go kernels (vector_width) do not have", o.Threads)
	}
	return nil
}
