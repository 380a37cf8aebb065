package verbs

import (
	"bytes"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// maxReadDepth bounds the reads that one queue pair has under way.
const maxReadDepth = 16

// hopLimit is how many routers a packet may cross.
const hopLimit = 64

// Connect moves the queue pair to RTS. It asks nothing of the peer, only of the kernel,
// which may look up the peer's hardware address (its own limit is about a second). So a
// peer that is not there shows in completions only.
func (e *endpoint) Connect(remote []byte, deadline time.Time) error {
	peer, err := decodeAddress(remote)
	if err != nil {
		return fmt.Errorf("connect: %w", e.refuse(err))
	}
	if peer.linkLayer != e.local.linkLayer {
		err := fmt.Errorf("%w: link layer %d, that of %s is %d", errAddress, peer.linkLayer, e.owner.device, e.local.linkLayer)
		return fmt.Errorf("connect: %w", e.refuse(err))
	}
	if e.State() != transport.StateNew || e.connected.Swap(true) {
		return fmt.Errorf("connect: %w", transport.ErrState)
	}
	if !time.Now().Before(deadline) {
		return fmt.Errorf("connect: %w", e.refuse(sys.ErrTimeout))
	}
	if err := e.reach(peer); err != nil {
		return fmt.Errorf("connect: %w", e.refuse(err))
	}
	e.peerMember = peer.member
	e.wasReady.Store(true)
	if !e.move(transport.StateNew, transport.StateReady) {
		return fmt.Errorf("connect: retired meanwhile: %w", transport.ErrState)
	}
	return nil
}

// reach makes the way to the peer.
func (e *endpoint) reach(peer address) error {
	if e.dc.inUse() {
		use, why := dcFor(e.local, peer)
		if use {
			return e.connectDC(peer)
		}
		if err := e.leaveDC(why); err != nil {
			return err
		}
	}
	if err := e.toRTR(peer); err != nil {
		return err
	}
	return e.toRTS(peer)
}

// refuse ends the life of an endpoint that cannot be connected, so that its
// receives come back, and returns err.
func (e *endpoint) refuse(err error) error {
	if e.move(transport.StateNew, transport.StateError) {
		_ = e.flush() // Retire does it again, and reports
	}
	return err
}

func (e *endpoint) modify(attr *libibverbs.QPAttr, mask uint32) error {
	return e.owner.lib.ModifyQP(e.qp, attr, mask)
}

// toInit makes the queue pair take receives. What peers may do is the regions'
// decision.
func (e *endpoint) toInit() error {
	return e.modify(&libibverbs.QPAttr{
		QPState:       libibverbs.QPStateInit,
		PortNum:       e.owner.port,
		QPAccessFlags: libibverbs.AccessRemoteWrite | libibverbs.AccessRemoteRead,
	}, libibverbs.QPState|libibverbs.QPPKeyIndex|libibverbs.QPPort|libibverbs.QPAccessFlags)
}

// toRTR makes the queue pair answer the peer's packets.
func (e *endpoint) toRTR(peer address) error {
	return e.modify(&libibverbs.QPAttr{
		QPState:         libibverbs.QPStateRTR,
		PathMTU:         uint32(min(e.local.mtu, peer.mtu)),
		DestQPNum:       peer.qpNumber,
		RQPSN:           peer.psn,
		MaxDestRdAtomic: e.local.readDepth,
		MinRNRTimer:     uint8(e.owner.config.RNRTimer),
		AH:              e.route(peer),
	}, libibverbs.QPState|libibverbs.QPAV|libibverbs.QPPathMTU|libibverbs.QPDestQPN|
		libibverbs.QPRQPSN|libibverbs.QPMaxDestRdAtomic|libibverbs.QPMinRNRTimer)
}

// toRTS makes it send, too.
func (e *endpoint) toRTS(peer address) error {
	c := e.owner.config
	return e.modify(&libibverbs.QPAttr{
		QPState:     libibverbs.QPStateRTS,
		SQPSN:       e.local.psn,
		Timeout:     uint8(c.TimeoutExponent),
		RetryCnt:    uint8(c.RetryCount),
		RNRRetry:    uint8(c.RNRRetryCount),
		MaxRdAtomic: min(e.owner.readsUnderWay, peer.readDepth),
	}, libibverbs.QPState|libibverbs.QPTimeout|libibverbs.QPRetryCnt|libibverbs.QPRNRRetry|
		libibverbs.QPSQPSN|libibverbs.QPMaxQPRdAtomic)
}

// toError makes the device complete everything that is outstanding.
func (e *endpoint) toError() error {
	return e.modify(&libibverbs.QPAttr{QPState: libibverbs.QPStateErr}, libibverbs.QPState)
}

// route is how packets get to the peer: by LID within an InfiniBand subnet,
// else by GID.
func (e *endpoint) route(peer address) libibverbs.AHAttr {
	t := e.owner
	ah := libibverbs.AHAttr{PortNum: t.port, DLID: peer.lid}
	sameSubnet := bytes.Equal(e.local.gid[:8], peer.gid[:8])
	byLID := e.local.linkLayer == libibverbs.LinkInfiniBand && sameSubnet && !e.local.needsRoute && !peer.needsRoute
	if !byLID {
		ah.IsGlobal = 1
		ah.DGID = peer.gid
		ah.SGIDIndex = e.gid // what the peer was told
		ah.HopLimit = hopLimit
		ah.TrafficClass = t.config.TrafficClass
	}
	return ah
}
