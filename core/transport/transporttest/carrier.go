package transporttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

// TransportHarness makes the transports under test, and says in what a carrier
// differs from others.
type TransportHarness struct {
	// New makes n transports in this process that can reach one another. The
	// suite closes them, unless it has killed them, and expects nothing to be
	// left then.
	New func(t testing.TB, n int) []transport.Transport
	// Memory returns zeroed memory that Register takes, and what frees it;
	// the suite calls that last. Nil: memory of the Go heap will do.
	Memory func(t testing.TB, sizeBytes int) (mem []byte, free func())
	// Kill makes a transport vanish as when its process ends, and frees what
	// it held: the suite does not call it any more. Nil where that cannot be
	// played in one process: the case Vanish must be skipped then.
	Kill func(t testing.TB, killed transport.Transport)
	// FlowControl says that a send, or a write with immediate, waits when the
	// peer has no receive posted. Else it ends with StatusNoReceive.
	FlowControl bool
	// MaxRequestBytes bounds the largest request that the suite makes, below
	// the carrier's own limit. 0: 16 MiB.
	MaxRequestBytes int
	// Timeout bounds every wait for something that must happen. 0: 20 s.
	Timeout time.Duration
	// Skips names the cases that this carrier does not pass, each with the
	// reason. NumSkips is how many there are: a case that comes to be skipped
	// has to be counted as well as excused.
	Skips    map[string]string
	NumSkips int
}

// carrierCases are the suite for transport.Transport.
var carrierCases = []struct {
	name string
	test func(*carrierTest)
}{
	{"Identity", carrierIdentity},
	{"EndpointBounds", carrierEndpointBounds},
	{"Register", carrierRegister},
	{"RegionIsHeld", carrierRegionIsHeld},
	{"PollInParts", carrierPollInParts},
	{"ConnectOrders", carrierConnectOrders},
	{"ConnectTwice", carrierConnectTwice},
	{"ConnectBadAddress", carrierConnectBadAddress},
	{"ConnectLate", carrierConnectLate},
	{"ConnectUnresponsivePeer", carrierConnectUnresponsivePeer},
	{"StatesForbid", carrierStatesForbid},
	{"SendPieces", carrierSendPieces},
	{"SendOfNothing", carrierSendOfNothing},
	{"Inline", carrierInline},
	{"Write", carrierWrite},
	{"WriteImm", carrierWriteImm},
	{"Read", carrierRead},
	{"Largest", carrierLargest},
	{"Mixture", carrierMixture},
	{"BadRequests", carrierBadRequests},
	{"BadReceives", carrierBadReceives},
	{"RemoteRefuses", carrierRemoteRefuses},
	{"ReceiveTooShort", carrierReceiveTooShort},
	{"NoReceive", carrierNoReceive},
	{"DepthSend", carrierDepthSend},
	{"DepthRecv", carrierDepthRecv},
	{"RetireFlushes", carrierRetireFlushes},
	{"RetireUnderLoad", carrierRetireUnderLoad},
	{"PeerRetires", carrierPeerRetires},
	{"CloseIsBusy", carrierCloseIsBusy},
	{"CloseAfterWait", carrierCloseAfterWait},
	{"TransportClose", carrierTransportClose},
	{"Vanish", carrierVanish},
	{"Wake", carrierWake},
	{"WaitSeesCompletions", carrierWaitSeesCompletions},
	{"ManyEndpoints", carrierManyEndpoints},
	{"Concurrent", carrierConcurrent},
	{"AllocatesNothing", carrierAllocatesNothing},
	{"LeavesNothing", carrierLeavesNothing},
}

// RunTransport runs the suite for transport.Transport. Every case also checks
// that each request that was accepted has ended exactly once when its endpoint
// is closed, and that everything can be closed then.
func RunTransport(t *testing.T, h TransportHarness) {
	for _, wrong := range wrongSkips(h) {
		t.Error(wrong)
	}
	if t.Failed() {
		return // a case would call what the harness lacks
	}
	for _, c := range carrierCases {
		t.Run(c.name, func(t *testing.T) {
			if reason := h.Skips[c.name]; reason != "" {
				t.Skip(reason)
			}
			c.test(newCarrierTest(t, h))
		})
	}
}

// wrongSkips returns what is wrong with the harness's list, a sentence each.
func wrongSkips(h TransportHarness) []string {
	var wrong []string
	if len(h.Skips) != h.NumSkips {
		wrong = append(wrong, fmt.Sprintf("%d cases are skipped, the carrier says %d", len(h.Skips), h.NumSkips))
	}
	if h.Kill == nil && h.Skips["Vanish"] == "" {
		wrong = append(wrong, "without Kill, Vanish must be among the skipped cases")
	}
	names := map[string]bool{}
	for _, c := range carrierCases {
		names[c.name] = true
	}
	for name, reason := range h.Skips {
		if !names[name] || reason == "" {
			wrong = append(wrong, fmt.Sprintf("skip of %q, because %q: there is no such case, or no reason", name, reason))
		}
	}
	return wrong
}

func newCarrierTest(t *testing.T, h TransportHarness) *carrierTest {
	c := &carrierTest{T: t, harness: h, seed: testenv.Seed(t), completions: make([]transport.Completion, 16)}
	if c.timeout = h.Timeout; c.timeout == 0 {
		c.timeout = testTimeout
	}
	t.Cleanup(c.finish)
	return c
}
