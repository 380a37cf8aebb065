package verbs

import (
	"fmt"
)

// Config says how a device is opened. The zero value is ready: the nearest
// device with an active port, and the defaults named below.
type Config struct {
	// Device is a device's name; empty: chosen among Devices.
	Device string
	// Port is the port's number from 1; 0: the first active one.
	Port int
	// Devices are those to choose from, if Device is empty.
	Devices Filter
	// Near is what the device should be near to: Nearest says how. Of several equally
	// near ones, number Turn is taken, counted round from 0. So processes of one host
	// with different turns spread over them.
	Near Place
	Turn int
	// GID is the address of the port to send from, on Ethernet; on InfiniBand
	// only an index means something.
	GID GIDChoice

	// The bounds that Limits reports; 0: 256 endpoints, depths of 256, 8
	// pieces, 64 inline bytes. What the device cannot do lowers pieces and
	// inline bytes; the others are then an error.
	NumEndpoints int
	SendDepth    int
	RecvDepth    int
	NumPieces    int
	InlineBytes  int
	// NumCompletions bounds the sum of the depths of all open endpoints; 0:
	// what NumEndpoints needs, but no more than the device has and 65536.
	NumCompletions int
	// MaxRegionBytes bounds one registration below the device's own bound; 0:
	// that bound.
	MaxRegionBytes int64

	// How long the device tries before it reports StatusUnreachable: 1 to 6
	// retries (0: 6), each after 4.096 µs times 2^TimeoutExponent (0: 14,
	// which is 67 ms). 7 retries is refused: some devices take it for ever.
	RetryCount      int
	TimeoutExponent int
	// How long it tries before StatusNoReceive: 1 to 6 retries (0: 6), each
	// after the peer's RNRTimer, a code of the InfiniBand specification
	// (0: 24, which is 41 ms).
	RNRRetryCount int
	RNRTimer      int

	// TrafficClass marks this transport's packets.
	TrafficClass uint8
	// DC uses dynamically connected queue pairs between ports that both have
	// them, and reliable connected ones elsewhere. Off by default: it never ran
	// on a device. NumDCIs initiators serve all endpoints of a port; 0: 8.
	DC      bool
	NumDCIs int
}

// The bounds of Config's fields.
const (
	maxEndpoints      = 1 << endpointBits
	maxDepth          = 1 << slotBits
	maxPieces         = 32
	maxInlineBytes    = 1024
	maxNumCompletions = 1 << 22
	maxNumDCIs        = 64
)

// withDefaults checks a configuration and fills in what it leaves open.
func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name                   string
		value                  *int
		normal, least, largest int
	}{
		{"Port", &c.Port, 0, 0, 255},
		{"NumEndpoints", &c.NumEndpoints, 256, 1, maxEndpoints},
		{"SendDepth", &c.SendDepth, 256, 1, maxDepth},
		{"RecvDepth", &c.RecvDepth, 256, 1, maxDepth},
		{"NumPieces", &c.NumPieces, 8, 1, maxPieces},
		{"InlineBytes", &c.InlineBytes, 64, 1, maxInlineBytes},
		{"NumCompletions", &c.NumCompletions, 0, 0, maxNumCompletions},
		{"NumDCIs", &c.NumDCIs, 8, 1, maxNumDCIs},
		{"RetryCount", &c.RetryCount, 6, 1, 6},
		{"TimeoutExponent", &c.TimeoutExponent, 14, 1, 31},
		{"RNRRetryCount", &c.RNRRetryCount, 6, 1, 6},
		{"RNRTimer", &c.RNRTimer, 24, 1, 31},
	} {
		if *f.value == 0 {
			*f.value = f.normal
		}
		if *f.value < f.least || *f.value > f.largest {
			return c, fmt.Errorf("%s is %d, must be %d to %d", f.name, *f.value, f.least, f.largest)
		}
	}
	if c.GID.Index < 0 || c.GID.Index > 255 {
		return c, fmt.Errorf("index of GID is %d, must be 0 to 255", c.GID.Index)
	}
	if c.Turn < 0 {
		return c, fmt.Errorf("value of Turn is %d, must not be negative", c.Turn)
	}
	if c.MaxRegionBytes < 0 {
		return c, fmt.Errorf("MaxRegionBytes is %d, must not be negative", c.MaxRegionBytes)
	}
	return c, nil
}
