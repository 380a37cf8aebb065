// Package libcuda is the CUDA driver, opened at run time: its functions,
// constants and structs under their own names. It holds no policy. Nothing is
// linked and no toolkit is needed; tests compare every signature, value and
// offset with the driver's header.
//
// Memory that the driver writes to or reads from in a call may be on the Go
// heap; what the device touches later may not.
package libcuda
