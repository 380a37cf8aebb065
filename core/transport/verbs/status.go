package verbs

import (
	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// statusOf says what a device's status means to a carrier's user.
func statusOf(s libibverbs.WCStatus) transport.Status {
	switch s {
	case libibverbs.WCSuccess:
		return transport.StatusOK
	case libibverbs.WCWRFlushErr:
		return transport.StatusFlushed
	case libibverbs.WCLocLenErr, libibverbs.WCLocQPOpErr, libibverbs.WCLocProtErr,
		libibverbs.WCLocAccessErr, libibverbs.WCMWBindErr:
		return transport.StatusLocal
	case libibverbs.WCRemAccessErr, libibverbs.WCRemInvReqErr, libibverbs.WCRemOpErr:
		return transport.StatusRemote
	case libibverbs.WCRNRRetryExcErr:
		return transport.StatusNoReceive
	case libibverbs.WCRetryExcErr, libibverbs.WCRespTimeoutErr, libibverbs.WCRemAbortErr:
		return transport.StatusUnreachable
	}
	return transport.StatusOther
}

// vendorCode keeps what statusOf loses: the device's status in the upper half,
// the driver's own code in the lower.
func vendorCode(wc *libibverbs.WC) uint32 {
	return uint32(wc.Status)<<16 | wc.VendorErr&0xffff
}

// failureTexts say in an event why an endpoint failed, by the device's status.
var failureTexts = [...]string{
	"success", "local length", "local queue pair operation", "local end-to-end context",
	"local protection", "flushed", "memory window binding", "bad response", "local access",
	"the peer refused the request", "the peer refused access", "the peer failed",
	"no answer from the peer", "the peer had no receive posted", "local reliable datagram domain",
	"the peer refused the read request", "the peer aborted", "end-to-end context number",
	"end-to-end context state", "fatal", "the peer's response took too long", "general",
	"tag matching", "tag matching, incomplete rendezvous", "unknown status",
}
