// Package sys is the only importer of golang.org/x/sys/unix: thin owners and
// functions over the Linux calls that the transports need. It holds no
// policy.
//
// Every error is wrapped once with the name of the call ("mmap: ...") and
// unwraps to the kernel's error number, so errors.Is works against the
// sentinels of package os and of this package. Owners (FD, Mapping) close
// idempotently and are counted by Stats, so that tests can prove that nothing
// is left.
package sys
