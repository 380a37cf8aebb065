// Package fabric is one carrier for a program that has no ranks and no experts, only
// peers. It adds connections that are made when they are needed and kept within a bound,
// memory by number, and operations that own their completion.
//
// Peers are numbers of the caller's. The two ends of a connection find each other by
// handshakes, which the caller carries by whatever means it has: Next gives one, Deliver
// takes one. There are no callbacks. With Config.Keys handshakes are signed, so that the
// channel that carries them can lose them and no more.
//
// An operation is a transfer of core/op. It is cut into slices of at most
// Config.SliceBytes, which are posted on the peer's connection, and completes once.
// Posting never blocks: at a bound it is refused, and then nothing has happened.
//
// One goroutine at a time polls the carrier. A caller that waits for an operation polls
// itself, unless another caller does, which then hands on the right to poll. Look polls
// for a moment, and so does a post that is at a bound. While no caller has done any of
// these for 1 to 2 ms, a goroutine in the background polls, whatever is posted meanwhile,
// so that what peers send is taken in.
//
// A fabric has one of two modes, the same at both ends of a connection, since a
// carrier has one queue of receives per connection:
//
//   - Immediates: empty receives are posted ahead, as many as a window, and the
//     poller posts them anew. Writes with immediate are matched with
//     ReceiveImm in the order in which they arrive, and wait for one within a
//     bound. At the bound, receives are not posted anew: the peer has to wait.
//   - Messages: receives have the caller's memory. Each message has a number,
//     which it brings along, because a carrier promises no order: the receive
//     says which message it has got.
//
// When a connection ends, what was posted on it ends with ErrEnded, or with
// what happened to it. The next operation makes another connection.
package fabric
