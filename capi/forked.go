package main

// #include "internal.h"
import "C"

import (
	"unsafe"

	"github.com/moewire/moewire/core/transport/mixed"
)

// The table lies in C: the fork handler reads it where Go does not run.
func init() { mixed.SetForkTable((*mixed.ForkTable)(unsafe.Pointer(&C.mwi_fork_table))) }

// Both sides agree on the table's size.
var _ = [1]struct{}{}[unsafe.Sizeof(mixed.ForkTable{})-unsafe.Sizeof(C.struct_mwi_fork_table{})]
