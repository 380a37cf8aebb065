package cpu

import (
	"fmt"
	"strings"

	"github.com/moewire/moewire/core/device"
)

// Stores says how placed rows are stored.
type Stores int

// The ways to store. StoresAuto is what docs/performance.md measured.
const (
	StoresAuto      Stores = iota
	StoresCached           // ordinary stores: rows stay in the caches
	StoresStreaming        // past the caches
)

// Bounds of Options.
const (
	MaxPrefetch = 64
	MaxThreads  = 64
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

// Open returns kernels with these options; the error says what is possible.
// They must be closed.
func Open(o Options) (device.Kernels, error) {
	switch {
	case o.Stores < StoresAuto || o.Stores > StoresStreaming:
		return nil, fmt.Errorf("cpu: stores %d, allowed %d (auto), %d (cached) and %d (streaming)",
			o.Stores, StoresAuto, StoresCached, StoresStreaming)
	case o.Prefetch < NoPrefetch || o.Prefetch > MaxPrefetch:
		return nil, fmt.Errorf("cpu: prefetch of %d rows, allowed %d (none) to %d", o.Prefetch, NoPrefetch, MaxPrefetch)
	case o.Threads < 0 || o.Threads > MaxThreads:
		return nil, fmt.Errorf("cpu: %d threads, allowed 0 (the default) to %d", o.Threads, MaxThreads)
	}
	if o.Width == Reference || (o.Width == Widest && len(Widths()) == 0) {
		return o.reference()
	}
	if o.Width == Widest {
		o.Width = Widths()[len(Widths())-1]
	}
	if !hasNative(o.Width) {
		return nil, fmt.Errorf("cpu: no kernels with vectors of %d bytes here (there are %v, %d for the widest, %d for plain Go)",
			o.Width, Widths(), Widest, Reference)
	}
	if o.Stores == StoresStreaming && !canStream {
		return nil, fmt.Errorf("cpu: no streaming stores on this architecture")
	}
	return newNative(o), nil
}

// reference refuses what plain Go has not.
func (o Options) reference() (device.Kernels, error) {
	var lacking []string
	for name, set := range map[string]bool{
		"streaming stores": o.Stores == StoresStreaming, "prefetch": o.Prefetch > 0, "threads": o.Threads > 1,
	} {
		if set {
			lacking = append(lacking, name)
		}
	}
	if len(lacking) > 0 {
		return nil, fmt.Errorf("cpu: the plain Go kernels have no %s", strings.Join(lacking, ", no "))
	}
	return NewReference(), nil
}
