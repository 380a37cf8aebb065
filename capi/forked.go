package main

// #include "internal.h"
import "C"

import (
	"unsafe"

	"github.com/moewire/moewire/core/group/multihost"
)

// The table lies in C, because the fork handler reads it where Go does not run.
func init() { multihost.SetForkTable((*multihost.ForkTable)(unsafe.Pointer(&C.mwi_fork_table))) }

// Both sides agree on the table's size.
var _ = [1]struct{}{}[unsafe.Sizeof(multihost.ForkTable{})-unsafe.Sizeof(C.struct_mwi_fork_table{})]
