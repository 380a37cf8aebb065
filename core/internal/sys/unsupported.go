//go:build !linux || !(amd64 || arm64)

package sys

// Moewire's shared-memory transport needs memfd, futex and pidfd, and a
// little-endian 64-bit machine. This line does not compile, on purpose.
var _ = moewireSupportsOnlyLinuxOnAmd64AndArm64
