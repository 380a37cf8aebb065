package cudaring

import (
	"errors"
	"fmt"
	"sync"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/transport"
)

// ErrInUse means that rings were not released: what carries their messages may
// still use them.
var ErrInUse = errors.New("messages to ranks of other hosts are in use")

// Rings makes all rings of a device, whatever carries their messages, and knows which are
// not freed yet. A ring that is released stays until Free. The reason: links end in the
// background, while kernels run that may wait for a message, and the driver may wait for
// kernels before it frees anything. Safe for concurrent use.
type Rings struct {
	dev *cuda.Device

	mu     sync.Mutex // guards what follows
	makers map[string]made
	inUse  int
	left   []*Ring // to be freed, or to be told of
	ended  bool    // by Close: what is released is freed at once
}

// made is the latest carrier of a name, and what makes rings for it.
type made struct {
	carrier transport.Transport
	maker   *Maker
}

// Of makes rings of one device. Close it before the device.
func Of(dev *cuda.Device) *Rings { return &Rings{dev: dev, makers: map[string]made{}} }

// Make makes a ring, for multihost.Config.Rings. The caller releases it.
func (s *Rings) Make(carrier transport.Transport, sizeBytes int64) (domain.Segment, error) {
	if sizeBytes <= 0 {
		return nil, errSize(sizeBytes)
	}
	r, err := s.maker(carrier).make(sizeBytes)
	if err != nil {
		err = fmt.Errorf("cudaring: %d bytes: %w", sizeBytes, errors.Join(err, r.free()))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leave(r)
		return nil, err
	}
	r.keep = s.keep
	s.mu.Lock()
	s.inUse++
	s.mu.Unlock()
	return r, nil
}

// maker looks once per carrier what is possible.
func (s *Rings) maker(carrier transport.Transport) *Maker {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := carrier.Name()
	if m, ok := s.makers[name]; ok && m.carrier == carrier {
		return m.maker
	}
	m := For(s.dev, carrier)
	s.leave(m.left)
	s.makers[name] = made{carrier, m}
	return m
}

func (s *Rings) keep(r *Ring) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse--
	if s.ended {
		r.closed = r.free()
	}
	s.leave(r)
}

// leave takes what is not freed, or of which the driver's refusal was not reported yet.
// The caller holds s.mu.
func (s *Rings) leave(r *Ring) {
	if r != nil && (r.hasUnfreed() || r.closed != nil) {
		s.left = append(s.left, r)
	}
}

// Free frees what was released. It is for when the device does nothing: each time
// before ranks meet again, so that there is no more than what two rendezvous have made.
// An error: something is left, for the next call, or the driver has refused to free
// it, which is said once.
func (s *Rings) Free() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free()
}

func (s *Rings) free() error {
	var all []error
	rest := s.left[:0]
	for _, r := range s.left {
		all = append(all, r.Close())
		if r.hasUnfreed() {
			rest = append(rest, r)
		}
	}
	clear(s.left[len(rest):])
	s.left = rest
	return errors.Join(all...)
}

// Where says in words where the messages over a carrier lie; "" if there were none.
func (s *Rings) Where(carrier string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.makers[carrier]
	switch {
	case !ok:
		return ""
	case m.maker.why != nil:
		return fmt.Sprintf("pinned host memory: %v", m.maker.why)
	}
	return "memory of the device"
}

// Close is Free for a caller that makes no kernel wait any more: what is released later
// is freed then. An error also if rings are in use still (ErrInUse). It may be called
// again.
func (s *Rings) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	err := s.free()
	if s.inUse > 0 {
		err = errors.Join(err, fmt.Errorf("%w: the memory of %d rings", ErrInUse, s.inUse))
	}
	return err
}
