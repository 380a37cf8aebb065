package wire

// Splitter cuts received bytes into message frames, however they were
// portioned. Its memory is one frame. For one goroutine at a time; the zero
// value is ready.
type Splitter struct {
	buf  [MaxFrameBytes]byte
	have int
}

// Next takes bytes from the beginning of in and returns what is left of it,
// and a frame once one is complete: then what is left begins with the frame's
// payload. The frame is valid until the next call. frame is nil when more bytes
// are needed; rest is empty then. ErrLength: this is no frame, and nothing
// after it can be one.
func (s *Splitter) Next(in []byte) (frame, rest []byte, err error) {
	in = s.fill(in, LengthBytes)
	if s.have < LengthBytes {
		return nil, in, nil
	}
	n, err := FrameBytes(s.buf[:])
	if err != nil {
		return nil, in, err
	}
	in = s.fill(in, n)
	if s.have < n {
		return nil, in, nil
	}
	s.have = 0
	return s.buf[:n], in, nil
}

// fill takes bytes until there are n.
func (s *Splitter) fill(in []byte, n int) []byte {
	if s.have >= n {
		return in
	}
	m := copy(s.buf[s.have:n], in)
	s.have += m
	return in[m:]
}
