//go:build linux

package sys

import "golang.org/x/sys/unix"

// Monotonic is CLOCK_MONOTONIC in nanoseconds: the same clock in all processes
// of a host. It is a system call; see telemetry.Clock for a cheap one.
func Monotonic() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, wrap("clock_gettime", err)
	}
	return ts.Nano(), nil
}
