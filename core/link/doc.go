// Package link carries messages between two ranks that cannot map one
// another's memory, in order and once each, over any transport.Transport.
//
// Each direction has a ring in the receiver's registered memory and one of the same size
// at the sender, where messages are put together. A message is one write with immediate
// to the place of the sender's cursor. The immediate carries its number and the
// completion its length, so the receiver knows where each one lies, in whatever order
// they come. The receiver grants again what it has released, by an empty write with
// immediate that says which messages these are. A grant that comes twice, or late,
// changes nothing.
//
//	Reserve ─ fill ─ Post ──OpWriteImm──▶ ring ─ Next ─ read ─ Release
//	   ▲                                                         │
//	   └──────────── free again ◀──OpWriteImm, no bytes──────────┘
//
// A ring's memory is free again once it was granted and its write has completed. The
// sender stops at the bound (transport.ErrWouldBlock), so the receiver always has a
// receive posted.
//
// Control is the other connection between two ranks: a TCP socket with a core/wire
// session. It carries what has to arrive although the data path may be stuck, and shows
// the end of the peer's process. A connection that breaks while both live is reconnected.
// See Controls.
package link
