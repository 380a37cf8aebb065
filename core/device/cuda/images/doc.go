// Package images has the kernels' code for each device: made ahead of time and
// built into this program, or compiled when it is asked for. It knows nothing
// of drivers; docs/cuda.md says which code a device gets.
package images
