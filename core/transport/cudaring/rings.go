package cudaring

import (
	"errors"
	"fmt"
	"sync"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/transport"
)

// ErrInUse means that rings were not released: what carries their messages may
// still use them.
var ErrInUse = errors.New("messages to ranks of other hosts are in use")

// Rings makes all rings of a device, whatever carries their messages, and knows
// which are not freed yet. Safe for concurrent use.
type Rings struct {
	dev *cuda.Device

	mu     sync.Mutex // guards what follows
	makers map[string]made
	inUse  int
	left   []*Ring // whose Release could not free them
}

// made is the latest carrier of a name, and what makes rings for it.
type made struct {
	carrier transport.Transport
	maker   *Maker
}

// Of makes rings of one device. Close it before the device.
func Of(dev *cuda.Device) *Rings { return &Rings{dev: dev, makers: map[string]made{}} }

// Make makes a ring, for mixed.Config.Rings. The caller releases it.
func (s *Rings) Make(carrier transport.Transport, sizeBytes int64) (transport.Segment, error) {
	r, err := s.maker(carrier).Make(sizeBytes)
	if err != nil {
		return nil, err
	}
	r.freed = s.free
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
	s.makers[name] = made{carrier, m}
	return m
}

func (s *Rings) free(r *Ring) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse--
	if r.closed != nil {
		s.left = append(s.left, r)
	}
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

// Close frees what could not be freed when it was released. An error: something is
// left, or in use still (ErrInUse), or the driver has refused to free it, which is
// said once. It may be called again.
func (s *Rings) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []error
	rest := s.left[:0]
	for _, r := range s.left {
		all = append(all, r.Close())
		if r.closed != nil {
			rest = append(rest, r)
		}
	}
	s.left = rest
	if s.inUse > 0 {
		all = append(all, fmt.Errorf("%w: the memory of %d rings", ErrInUse, s.inUse))
	}
	return errors.Join(all...)
}
