// Package link carries messages between two ranks that cannot map one
// another's memory, in order and once each, over any transport.Transport.
//
// Each direction has a ring in the receiver's registered memory and one of the
// same size at the sender, where messages are put together. A message is one
// write with immediate to the place that the sender's cursor says; the
// immediate has its number, the completion its length, and so the receiver
// knows where each one lies whatever order they come in. What the receiver has
// released it grants again by an empty write with immediate that says which
// messages these are: a grant that comes twice, or late, gives nothing.
//
//	Reserve ─ fill ─ Post ──OpWriteImm──▶ ring ─ Next ─ read ─ Release
//	   ▲                                                         │
//	   └──────────── free again ◀──OpWriteImm, no bytes──────────┘
//
// A ring's memory is free again once it was granted and its write has completed. The
// sender stops at the bound (transport.ErrWouldBlock), so the receiver always has a
// receive posted.
//
// Control is the other connection between two ranks: a TCP socket with a
// core/wire session, for what has to arrive although the data path may be
// stuck, and to notice the end of the peer's process. A connection that breaks
// while both live is reconnected. See Controls.
package link
