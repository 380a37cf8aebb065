package testenv

import (
	"syscall"
	"time"
)

// BusyTime is how long this process has kept processors busy.
func BusyTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // the kernel always knows
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
