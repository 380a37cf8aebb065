// Package wire authenticates what processes of different hosts tell one
// another: frames signed with HMAC-SHA256, sessions with keys of their own, and
// the keys that both sides share beforehand. It does no input or output.
//
// A frame is a length, a header and a trailer with a time and the tag. The
// payload follows the frame, so that a receiver knows that the header is
// genuine before it believes a length or chooses where the payload goes:
//
//	length u32 | header | time u64 | HMAC-SHA256 | payload
//
// How a carrier uses it:
//
//	h, _ := wire.NewHandshake(wire.RoleClient, config) // and RoleServer at the other side
//	write(h.Start())                                    // client only
//	for !h.Done() { n, out, err := h.Step(received); write(out) }
//	s := h.Session()
//
//	frame, _ = s.Seal(frame[:0], &head, pieces...)      // then write frame and the pieces
//
//	frame, rest, _ := splitter.Next(received)           // or: 4 bytes, FrameBytes, the others
//	head, _ := s.OpenHead(frame)                        // genuine, new and for us
//	digest.Begin(&head); digest.Write(piece); ...; err := digest.Check()
//
// Singles are for requests outside of sessions. docs/wire.md describes the formats byte by
// byte. They share no keys, so that no frame of one is taken for one of another.
package wire
