// Package tcp is the carrier that works wherever there is a network: a
// transport.Transport over TCP sockets. It gives the operations of RDMA (send,
// write, write with immediate, read) in software, and authenticates every byte
// with core/wire; there is no mode without keys.
//
// Which goroutine does the work: bytes move inside Poll and Wait, on the goroutine that
// calls them, and a little inside PostSend. While no caller is in Wait and none has
// polled for 1 to 2 ms, a standby goroutine moves them. (Connect needs neither.) One more
// goroutine per transport listens and does the handshakes of the peers that dial.
//
// How bytes move: one-sided. A write's bytes are read from the socket straight into the
// region. Before that, the header that names the region was found genuine, and the key,
// bounds and access right. The digest is checked before the write is reported. A request
// that ends in anything but StatusOK may have changed the bytes that it was for, never
// others. Larger requests travel in segments, over one socket or several; a request is
// complete when all of it is there.
//
// Order: as little as carrier.go says. Requests of one endpoint complete in the order in
// which they were posted, receives too; with several sockets, bytes become visible in any
// order.
//
// Locks of an endpoint: io before mu. The goroutine that reads or writes an endpoint's
// sockets holds io; mu is for short looks at its queues. Neither is held while a
// goroutine waits.
package tcp
