package verbs

import (
	"errors"
	"fmt"
	"slices"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// PostSend hands over send requests, in chains of up to chainLength.
func (e *endpoint) PostSend(requests []transport.SendRequest) (int, error) {
	posted, err := e.send.post(requests)
	if e.dc.inUse() && posted > 0 {
		e.pump()
	}
	return posted, err
}

func (s *side) post(requests []transport.SendRequest) (posted int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state := s.endpoint.State(); state != transport.StateReady && state != transport.StateError {
		return 0, errState
	}
	return s.postAll(len(requests), sendWRBytes, func(r, place, index int, free *slot) error {
		return s.sendOne(place, index, free, &requests[r])
	})
}

// postAll hands over n requests of one call, in chains. fill puts the r-th of
// them into its place. What was handed over before an error counts.
func (s *side) postAll(n int, wrBytes uintptr, fill func(r, place, index int, free *slot) error) (posted int, err error) {
	for posted < n {
		length, wrong := s.fillChain(posted, n, wrBytes, fill)
		accepted, err := s.handOver(length, wrBytes)
		posted += accepted
		if err != nil {
			return posted, err
		}
		if wrong != nil {
			return posted, wrong
		}
	}
	return posted, nil
}

// fillChain fills in requests up to the chain's length, the depth, or the first that
// cannot be posted, and returns the error of that one.
func (s *side) fillChain(from, to int, wrBytes uintptr, fill func(r, place, index int, free *slot) error) (n int, wrong error) {
	most := s.chain(to - from)
	for n < most {
		index, free := s.slots.at(n)
		if wrong = fill(from+n, s.place(n, index), index, free); wrong != nil {
			free.release()
			break
		}
		if n > 0 {
			*s.next(n-1, wrBytes) = s.wrs + uintptr(n)*wrBytes
		}
		n++
	}
	if n == 0 && wrong == nil {
		return 0, errFull
	}
	return n, wrong
}

func (s *side) sendOne(i, index int, free *slot, r *transport.SendRequest) error {
	opcode, err := sendOpcode(r.Op)
	if err != nil {
		return err
	}
	numSGE, total, err := s.fill(i, r.Local, free)
	if err != nil {
		return err
	}
	if err := s.endpoint.checkSend(r, total); err != nil {
		return err
	}
	flags := uint32(libibverbs.SendSignaled)
	if r.Inline {
		if slices.ContainsFunc(free.regions, func(r *region) bool { return r.device }) {
			return errInlineDevice
		}
		flags |= libibverbs.SendInline
		if s.keeps {
			numSGE = s.keepInline(i, numSGE)
		}
	}
	*s.sendWR(i) = libibverbs.SendWR{
		WRID:       uint64(newTag(s.endpoint.index, false, index, free.key)),
		SGList:     s.sge(i),
		NumSGE:     numSGE,
		Opcode:     opcode,
		SendFlags:  flags,
		ImmData:    bigEndian(r.Imm),
		RemoteAddr: r.Remote.Addr + r.RemoteOff,
		RKey:       uint32(r.Remote.Key),
	}
	free.id, free.op, free.bytes = r.ID, r.Op, uint32(total)
	return nil
}

var errInlineDevice = errors.New("post: Local names a device's memory, which cannot be inline")

func sendOpcode(op transport.Opcode) (uint32, error) {
	switch op {
	case transport.OpSend:
		return libibverbs.WRSend, nil
	case transport.OpWrite:
		return libibverbs.WRRDMAWrite, nil
	case transport.OpWriteImm:
		return libibverbs.WRRDMAWriteWithImm, nil
	case transport.OpRead:
		return libibverbs.WRRDMARead, nil
	}
	return 0, fmt.Errorf("post: Op is %d, must be OpSend, OpWrite, OpWriteImm or OpRead", op)
}

// checkSend refuses what the device would refuse in its own way. Whether the
// peer's region allows it is the peer's device's decision.
func (e *endpoint) checkSend(r *transport.SendRequest, total int64) error {
	t := e.owner
	switch {
	case total > t.limits.MaxRequestBytes:
		return fmt.Errorf("post: %d bytes, at most %d", total, t.limits.MaxRequestBytes)
	case r.Inline && total > int64(t.limits.InlineBytes):
		return fmt.Errorf("post: %d bytes inline, at most %d", total, t.limits.InlineBytes)
	case r.Inline && r.Op == transport.OpRead:
		return fmt.Errorf("post: a read cannot be inline")
	case r.Op == transport.OpSend || !e.wasReady.Load():
		return nil
	case r.Remote.Key>>32 >= maxNICs:
		return fmt.Errorf("post: Remote.Key %#x is none of this carrier", r.Remote.Key)
	case uint8(r.Remote.Key>>32) != e.peerMember:
		return fmt.Errorf("post: Remote.Key is of port %d of the peer, the connection goes to port %d: the region has another key there",
			r.Remote.Key>>32, e.peerMember)
	}
	return nil
}

// PostRecv hands over receive requests.
func (e *endpoint) PostRecv(requests []transport.RecvRequest) (int, error) {
	s := e.recv
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.State() == transport.StateClosed {
		return 0, errState
	}
	return s.postAll(len(requests), recvWRBytes, func(r, place, index int, free *slot) error {
		return s.recvOne(place, index, free, &requests[r])
	})
}

func (s *side) recvOne(i, index int, free *slot, r *transport.RecvRequest) error {
	numSGE, total, err := s.fill(i, r.Local, free)
	if err != nil {
		return err
	}
	if limit := s.endpoint.owner.limits.MaxRequestBytes; total > limit {
		return fmt.Errorf("post: %d bytes, at most %d", total, limit)
	}
	*s.recvWR(i) = libibverbs.RecvWR{
		WRID:   uint64(newTag(s.endpoint.index, true, index, free.key)),
		SGList: s.sge(i),
		NumSGE: numSGE,
	}
	free.id, free.op, free.bytes = r.ID, transport.OpRecv, 0
	return nil
}
