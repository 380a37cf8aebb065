package verbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/moewire/moewire/core/internal/libibverbs"
)

// Dynamically connected (DC) queue pairs, which some devices have: a few
// initiators (DCI) on this side reach any number of targets (DCT) on others.
// Here is the decision whether two ports use them. dcpool.go has the rules by
// which initiators are shared out, dcport.go the initiators, dcend.go what an
// endpoint has for receiving. None of it ever ran on a device that has DC.

// DC says whether a port has such queue pairs.
type DC struct {
	Detected bool
	Why      string // the answer is what it is
}

// String is for people.
func (d DC) String() string {
	if d.Detected {
		return "DC: used with ports that have it"
	}
	return "DC: no, " + d.Why
}

// useDC decides for a pair: both ports must have it. Each side has decided for
// itself before it tells its address, so that they come to the same answer.
func useDC(local, peer bool) (use bool, why string) {
	switch {
	case !local && !peer:
		return false, "neither port has DC"
	case !local:
		return false, "this port has no DC"
	case !peer:
		return false, "the peer's port has no DC"
	}
	return true, "both ports have DC"
}

// dcFor is useDC for two addresses. Packets of DC have the size that each port
// has set for itself, so those must be equal.
func dcFor(local, peer address) (use bool, why string) {
	use, why = useDC(local.hasDC, peer.hasDC)
	if use && local.mtu != peer.mtu {
		return false, fmt.Sprintf("MTUs differ, codes %d and %d", local.mtu, peer.mtu)
	}
	return use, why
}

// dcDriver is what DC needs of the driver's library.
type dcDriver interface {
	supported() bool
	createSRQ(depth, pieces int) (libibverbs.SRQ, error)
	destroySRQ(libibverbs.SRQ) error
	createTarget(srq libibverbs.SRQ, key uint64) (libibverbs.QP, error)
	createInitiator() (libibverbs.QP, error)
	modify(qp libibverbs.QP, attr *libibverbs.QPAttr, mask uint32) error
	destroy(qp libibverbs.QP) error
}

// dcStep is one change of a queue pair's state.
type dcStep struct {
	attr libibverbs.QPAttr
	mask uint32
}

// targetSteps make a target ready to answer; only then has it a number. It is
// never moved to RTS, since it sends nothing by itself.
func (t *Transport) targetSteps() []dcStep {
	place, gid := t.here()
	ah := libibverbs.AHAttr{PortNum: t.port}
	if place.linkLayer == libibverbs.LinkEthernet || place.needsRoute {
		ah.IsGlobal, ah.SGIDIndex, ah.HopLimit, ah.TrafficClass = 1, gid, hopLimit, t.config.TrafficClass
	}
	return []dcStep{
		{libibverbs.QPAttr{
			QPState: libibverbs.QPStateInit, PortNum: t.port,
			QPAccessFlags: libibverbs.AccessRemoteWrite | libibverbs.AccessRemoteRead,
		}, libibverbs.QPState | libibverbs.QPPKeyIndex | libibverbs.QPPort | libibverbs.QPAccessFlags},
		{libibverbs.QPAttr{
			QPState: libibverbs.QPStateRTR, PathMTU: uint32(place.mtu), MinRNRTimer: uint8(t.config.RNRTimer), AH: ah,
		}, libibverbs.QPState | libibverbs.QPAV | libibverbs.QPPathMTU | libibverbs.QPMinRNRTimer},
	}
}

// initiatorSteps make an initiator ready to send. Where to is said with each
// request.
func (t *Transport) initiatorSteps() []dcStep {
	place, _ := t.here()
	c := t.config
	return []dcStep{
		{libibverbs.QPAttr{QPState: libibverbs.QPStateInit, PortNum: t.port},
			libibverbs.QPState | libibverbs.QPPKeyIndex | libibverbs.QPPort},
		{libibverbs.QPAttr{QPState: libibverbs.QPStateRTR, PathMTU: uint32(place.mtu)},
			libibverbs.QPState | libibverbs.QPPathMTU},
		{libibverbs.QPAttr{
			QPState: libibverbs.QPStateRTS, Timeout: uint8(c.TimeoutExponent), RetryCnt: uint8(c.RetryCount),
			RNRRetry: uint8(c.RNRRetryCount), MaxRdAtomic: t.readsUnderWay,
		}, libibverbs.QPState | libibverbs.QPTimeout | libibverbs.QPRetryCnt | libibverbs.QPRNRRetry |
			libibverbs.QPSQPSN | libibverbs.QPMaxQPRdAtomic},
	}
}

// resetSteps bring an initiator back that has failed, once everything posted
// on it has completed: RESET discards what has not.
func (t *Transport) resetSteps() []dcStep {
	reset := dcStep{libibverbs.QPAttr{QPState: libibverbs.QPStateReset}, libibverbs.QPState}
	return append([]dcStep{reset}, t.initiatorSteps()...)
}

func take(d dcDriver, qp libibverbs.QP, steps []dcStep) error {
	for i := range steps {
		if err := d.modify(qp, &steps[i].attr, steps[i].mask); err != nil {
			return fmt.Errorf("to state %d: %w", steps[i].attr.QPState, err)
		}
	}
	return nil
}

// detectDC tries what DC needs, and leaves nothing. The error is of what could
// not be taken down again.
func (t *Transport) detectDC(d dcDriver) (DC, error) {
	if !d.supported() {
		return DC{Why: "the device is of another driver"}, nil
	}
	srq, err := d.createSRQ(t.limits.RecvDepth, t.limits.NumPieces)
	if err != nil {
		return noDC("no shared receive queue", err), nil
	}
	found, left := t.tryTarget(d, srq)
	if found.Detected {
		var more error
		found, more = t.tryInitiator(d)
		left = errors.Join(left, more)
	}
	return found, errors.Join(left, d.destroySRQ(srq))
}

func (t *Transport) tryTarget(d dcDriver, srq libibverbs.SRQ) (DC, error) {
	qp, err := d.createTarget(srq, uint64(randomPSN()))
	if err != nil {
		return noDC("no target", err), nil
	}
	return tried(take(d, qp, t.targetSteps()), "no target"), d.destroy(qp)
}

func (t *Transport) tryInitiator(d dcDriver) (DC, error) {
	qp, err := d.createInitiator()
	if err != nil {
		return noDC("no initiator", err), nil
	}
	return tried(take(d, qp, t.initiatorSteps()), "no initiator"), d.destroy(qp)
}

func tried(err error, what string) DC {
	if err != nil {
		return noDC(what, err)
	}
	return DC{Detected: true, Why: "target and initiator could be made"}
}

func noDC(what string, err error) DC {
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return DC{Why: what + ": the device or its firmware cannot"}
	}
	return DC{Why: what + ": " + err.Error()}
}
