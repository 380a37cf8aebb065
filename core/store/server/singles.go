package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

const (
	// maxSingleBytes bounds a block of a single request: it is in memory as a whole, before
	// anything of it is believed.
	maxSingleBytes = 16 << 20
	// maxSingles is how many connections of single requests there may be.
	maxSingles = 8
	// singlePieceBytes is how much one read or write may take of them: each has its own deadline.
	singlePieceBytes = 256 << 10
)

func (s *Server) prepareSingles() (err error) {
	if s.cfg.NoSingles {
		return nil
	}
	cfg := wire.Config{Keys: s.cfg.Keys, MaxPayloadBytes: maxSingleBytes, Counters: &s.refusals, Now: s.cfg.Now}
	s.signed, err = wire.NewSingles(cfg, s.boot, message.Open)
	return err
}

// serveSingles serves a connection that has begun with these bytes. Until its first request was
// genuine it is one of those of which nothing is known.
func (s *Server) serveSingles(nc net.Conn, first []byte, deadline time.Time) {
	c := &single{server: s, nc: nc}
	head, err := c.head(first, deadline)
	s.mu.Lock()
	s.pending.Remove(nc)
	full := len(s.singles) >= maxSingles
	if err != nil || full || s.closing {
		s.mu.Unlock()
		s.reject(nc, err, full)
		return
	}
	s.singles[c] = struct{}{}
	s.mu.Unlock()
	defer s.leave(c)
	defer c.leave()
	c.note(c.serve(&head))
}

func (s *Server) leave(c *single) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.singles, c)
}

func (s *Server) closeSingles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.singles {
		_ = c.nc.Close()
	}
}

// serve does one request after the other. io.EOF: the client has ended the connection.
func (c *single) serve(head *wire.SingleHead) error {
	for {
		if err := c.perform(head); err != nil {
			return err
		}
		first, err := c.next()
		if err != nil {
			return err
		}
		if *head, err = c.head(first, time.Now().Add(c.server.cfg.Total)); err != nil {
			return err
		}
	}
}

// next waits for the first byte of a request, until the server ends. A connection that is of no use is
// given up: others may want its place.
func (c *single) next() ([]byte, error) {
	if err := c.nc.SetReadDeadline(time.Now().Add(c.server.cfg.Total)); err != nil {
		return nil, err
	}
	if !c.wait(true) {
		return nil, io.EOF
	}
	defer c.wait(false)
	n, err := c.nc.Read(c.frame[:1])
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, io.EOF
	}
	return c.frame[:n], err
}

// wait says whether the connection waits for a request. It reports whether there may be one more.
func (c *single) wait(waits bool) bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.waits = waits
	return !c.server.closing
}

// head reads a frame, of which some bytes are there, and checks it.
func (c *single) head(first []byte, until time.Time) (wire.SingleHead, error) {
	have := copy(c.frame[:], first)
	c.reading = c.server.cfg.Keys.Reading()
	if have < wire.LengthBytes {
		if err := c.read(c.frame[have:wire.LengthBytes], until); err != nil {
			return wire.SingleHead{}, err
		}
		have = wire.LengthBytes
	}
	n, err := wire.SingleFrameBytes(c.frame[:])
	if err != nil {
		return c.server.signed.Open(c.frame[:have]) // counts it
	}
	if err := c.read(c.frame[have:n], until); err != nil {
		return wire.SingleHead{}, err
	}
	return c.server.signed.Open(c.frame[:n])
}

// read fills p: each piece within the time that one may take, all until a moment.
func (c *single) read(p []byte, until time.Time) error {
	for len(p) > 0 {
		if err := c.nc.SetReadDeadline(c.deadline(until)); err != nil {
			return err
		}
		n, err := c.nc.Read(p[:min(len(p), singlePieceBytes)])
		p = p[n:]
		if err != nil && len(p) > 0 {
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// write writes p in the same way.
func (c *single) write(p []byte, until time.Time) error {
	for len(p) > 0 {
		if err := c.nc.SetWriteDeadline(c.deadline(until)); err != nil {
			return err
		}
		n, err := c.nc.Write(p[:min(len(p), singlePieceBytes)])
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (c *single) deadline(until time.Time) time.Time {
	if idle := time.Now().Add(c.server.cfg.Idle); idle.Before(until) {
		return idle
	}
	return until
}

// note counts why a connection ended. What was not genuine is counted by its reason already.
func (c *single) note(err error) {
	var reason wire.Reason
	if errors.Is(err, io.EOF) || errors.As(err, &reason) {
		return
	}
	c.server.counters.Lost.Add(1)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.counters.Idle.Add(1)
	}
	c.server.logRare(&c.server.lost, fmt.Sprintf("%v was lost: %v", c.nc.RemoteAddr(), err))
}
