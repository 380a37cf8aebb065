// Package main is the C ABI: include/moewire.h says what each function does.
// shim.c has the exported functions; the Go functions behind them are hidden
// by exports.map. This package and core/device/cpu are the only users of cgo.
package main

// #cgo CFLAGS: -std=c11 -O2 -I${SRCDIR}/include -Wall -Wextra
// #cgo LDFLAGS: -lpthread
// #include <stdlib.h>
// #include "internal.h"
import "C"

import (
	"runtime"
	"sync"
)

// version is set by the build.
var version = "dev"

var versionOnce = sync.OnceValue(func() *C.char { return C.CString(version) })

//export mwiVersion
func mwiVersion() *C.char { return versionOnce() }

// minProcs keeps the collector and the watcher running while a call waits.
const minProcs = 2

func ensureProcs() {
	if runtime.GOMAXPROCS(0) < minProcs {
		runtime.GOMAXPROCS(minProcs)
	}
}

func main() {}
