package cuda

import (
	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
)

// receiveOn and reduceOn launch the phase that a slot's earlier call has pending,
// because another call needs it first. They launch on that call's stream. The caller
// has put that stream behind the earlier call before this one began: nothing that is
// launched on the old stream from now on comes before what this call launches.
func (b *Buffer) receiveOn(s *slot, stream uint64) error {
	if s.received {
		return nil
	}
	if err := b.move(s, &s.dispatch.Call, stream); err != nil {
		return err
	}
	return b.receive(s)
}

func (b *Buffer) reduceOn(s *slot, stream uint64) error {
	if !s.pending {
		return nil
	}
	if err := b.move(s, &s.combine.Call, stream); err != nil {
		return err
	}
	return b.reduce(s)
}

// move has the rest of a call launched on another stream. The rest stays on its own
// stream if the other one records and the first phase ran, or the other way round. Part
// of what runs must not be replayed, and no part of a graph may be missing there. The
// caller orders graph and stream. Where both streams record what has begun to run, it
// is refused.
func (b *Buffer) move(s *slot, c *device.Call, stream uint64) error {
	if c.Stream != stream {
		records, err := b.captures(stream)
		if err != nil {
			return err
		}
		if records == s.recorded {
			c.Stream = stream
		}
	}
	if s.recorded {
		return nil
	}
	if records, err := b.captures(c.Stream); err != nil || !records {
		return err
	}
	return ep.Invalid("the call needs the second phase of handle %d, whose first one ran: it must not be recorded, so call its hook, "+
		"or release it, before the capture begins", s.handle)
}

// captures ends the buffer's part in the epoch when the driver does not say whether the
// stream is captured, as a launch does that fails: part of what goes on might be
// replayed.
func (b *Buffer) captures(stream uint64) (bool, error) {
	records, err := b.engine.Captures(stream)
	if err != nil {
		return false, b.launched(err)
	}
	return records, nil
}

// markRecorded is for a first phase with a second one that may be launched apart.
func (b *Buffer) markRecorded(s *slot, apart bool, stream uint64) (err error) {
	s.recorded = false
	if apart {
		s.recorded, err = b.captures(stream)
	}
	return err
}

// takeOver ends the handle of a slot that a dispatch takes, on its stream. It launches
// the sum that the handle has pending, which was promised. It does not launch that of a
// graph which is complete without it.
func (b *Buffer) takeOver(s *slot, stream uint64) error {
	if !s.live {
		return nil
	}
	whole := s.recorded // by itself
	if whole {
		records, err := b.captures(s.combine.Stream)
		if err != nil {
			return err
		}
		whole = !records
	}
	if !whole {
		if err := b.reduceOn(s, stream); err != nil {
			return err
		}
	}
	if s.combined() { // the dispatch releases it, and its own messages say so
		return nil
	}
	_, err := b.endHandle(s, stream)
	return err
}

// endHandle ends a slot's handle. Remote ranks get what its first phase has left for them,
// and learn that there will be no more outputs. The call that endHandle returns is of the
// slot's operation, on the stream.
func (b *Buffer) endHandle(s *slot, stream uint64) (*device.Call, error) {
	s.live = false
	c := &s.combine.Call // on the heap already
	split := c.Split || s.dispatch.Split
	*c = s.dispatch.Call
	c.Stream, c.Split = stream, split
	return c, b.launched(b.engine.SendRest(c))
}
