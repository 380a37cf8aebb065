// Package libnvrtc is NVIDIA's run-time compiler, opened at run time. It turns
// CUDA source into code for a named architecture, and needs neither a GPU nor
// a driver. It holds no policy: where the library is looked for is the
// caller's business.
package libnvrtc
