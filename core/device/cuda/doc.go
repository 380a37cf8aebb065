// Package cuda runs dispatch and combine on NVIDIA GPUs: it opens the driver,
// owns the memory of a rank on its device, and launches the kernels of
// kernels/ on streams that the caller gives.
//
// What the host does per operation is launching: numbers of operations, waits,
// deadlines and counts live on the device, so a recorded graph replays without
// the host. The host tells the device which ranks are members, and which have
// ended (HostControl); it reads which ranks the device found late (Report).
package cuda
