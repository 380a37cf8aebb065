// Package dl opens shared libraries at run time and calls C functions in
// them. It is the only user of purego, and holds no policy: which library is
// opened, and what its absence means, is the caller's business.
//
// Libraries stay open until the process ends: drivers start threads and keep
// pointers into themselves.
package dl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ebitengine/purego"
)

// Sentinels for errors.Is.
var (
	// ErrNoLibrary means that none of the candidates could be opened.
	ErrNoLibrary = errors.New("library not found")
	// ErrNoSymbol means that the library lacks a function.
	ErrNoSymbol = errors.New("symbol not found")
)

// Library is an open shared library. Safe for concurrent use.
type Library struct {
	name   string
	lookup func(symbol string) (uintptr, error)
}

// Open opens the first candidate that can be opened: a soname, which the
// loader looks for as it does for any program, or a path. The error lists all
// that was tried, each with the loader's own words.
func Open(candidates ...string) (*Library, error) {
	tried := make([]string, 0, len(candidates))
	for _, name := range candidates {
		if name == "" {
			continue
		}
		handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			find := func(symbol string) (uintptr, error) { return purego.Dlsym(handle, symbol) }
			return &Library{name: name, lookup: find}, nil
		}
		tried = append(tried, fmt.Sprintf("%s (%v)", name, err))
	}
	return nil, fmt.Errorf("%w; tried: %s", ErrNoLibrary, strings.Join(tried, ", "))
}

// noLoad is the loader's RTLD_NOLOAD, the same number on all of Linux.
const noLoad = 4

// OpenLoaded opens the first candidate that the process has open already.
func OpenLoaded(candidates ...string) (*Library, error) {
	for _, name := range candidates {
		handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL|noLoad)
		if err == nil && handle != 0 {
			find := func(symbol string) (uintptr, error) { return purego.Dlsym(handle, symbol) }
			return &Library{name: name, lookup: find}, nil
		}
	}
	return nil, fmt.Errorf("%w; not open: %s", ErrNoLibrary, strings.Join(candidates, ", "))
}

// Name is the candidate that was opened.
func (l *Library) Name() string { return l.name }

// Lookup finds a function.
func (l *Library) Lookup(symbol string) (Func, error) {
	addr, err := l.lookup(symbol)
	if err != nil {
		return 0, fmt.Errorf("%w: %s in %s (%w)", ErrNoSymbol, symbol, l.name, err)
	}
	return Func(addr), nil
}

// LookupAll finds functions by their symbols. The error is of the first that
// is missing.
func (l *Library) LookupAll(functions map[string]*Func) (err error) {
	for symbol, f := range functions {
		if *f, err = l.Lookup(symbol); err != nil {
			return err
		}
	}
	return nil
}
