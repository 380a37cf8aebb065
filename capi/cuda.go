package main

// #include "internal.h"
import "C"

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/device/cuda"
)

// errNoDevice means that there is no CUDA driver, or none that will do.
var errNoDevice = errors.New("no CUDA device")

//export mwiCUDAReport
func mwiCUDAReport(driver *C.mw_bytes_t, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		path, err := text("driver", *driver)
		if err != nil {
			return err
		}
		found, err := cuda.NewSurvey(string(path))
		if err != nil {
			return fmt.Errorf("%w: %w", errNoDevice, err)
		}
		return copyJSON(found, buf, size, length)
	})
}
