package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// The settings that people write: which devices, which address of a port, and
// what to be near to.

// Filter says which ports may be used. The zero value is all.
type Filter struct {
	names []portName
}

// portName is a device, or all with names that begin so, and a port, or all.
type portName struct {
	device string
	prefix bool
	port   int // 0: all
}

const filterForm = `names of devices with commas, each with or without a port: mlx5_0,mlx5_1:2, or mlx5_*`

var deviceName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,63}$`)

// ParseDevices reads names of devices, separated by commas; "" is all. A name
// may end with * (all that begin so) and with :PORT.
func ParseDevices(text string) (f Filter, err error) {
	if text == "" {
		return f, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		n, wrong := parsePort(strings.TrimSpace(part))
		if wrong != "" {
			return Filter{}, fmt.Errorf("%.64q with %s, allowed are %s", text, wrong, filterForm)
		}
		f.names = append(f.names, n)
	}
	return f, nil
}

// parsePort reads one of them, or says what is wrong with it.
func parsePort(text string) (n portName, wrong string) {
	name, port, withPort := strings.Cut(text, ":")
	n.device, n.prefix = strings.CutSuffix(name, "*")
	switch {
	case name == "":
		return n, "an empty name"
	case name != "*" && !deviceName.MatchString(n.device):
		return n, fmt.Sprintf("the name %.64q", name)
	case !withPort:
		return n, ""
	}
	num, err := strconv.ParseUint(port, 10, 8)
	if err != nil || num < 1 {
		return n, fmt.Sprintf("the port %.64q, not 1 to 255", port)
	}
	n.port = int(num)
	return n, ""
}

// allows reports whether a port may be used.
func (f Filter) allows(device string, port int) bool {
	for _, n := range f.names {
		named := device == n.device || n.prefix && strings.HasPrefix(device, n.device)
		if named && (n.port == 0 || n.port == port) {
			return true
		}
	}
	return len(f.names) == 0
}

// String is what ParseDevices reads.
func (f Filter) String() string {
	texts := make([]string, 0, len(f.names))
	for _, n := range f.names {
		text := n.device
		if n.prefix {
			text += "*"
		}
		if n.port != 0 {
			text += ":" + strconv.Itoa(n.port)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ",")
}

// GIDChoice says which entry of a port's table of addresses (GIDs) is sent
// from. The zero value lets the carrier choose. It must lead to the peers'
// networks.
type GIDChoice struct {
	// ByIndex takes entry Index, 0 to 255, whatever it is.
	ByIndex bool
	Index   int
	// Type is RoCEv1 or RoCEv2; 0: any, v2 before v1.
	Type RoCEType
	// Within is the network that the address is of; the zero value: any.
	Within netip.Prefix
}

// RoCEType is how RDMA goes over Ethernet.
type RoCEType uint8

// The types.
const (
	AnyRoCE RoCEType = iota
	RoCEv1           // frames of Ethernet: one network
	RoCEv2           // UDP: routers forward it
)

const gidForm = "an index (3), or v1 or v2, or an address or a network (10.0.0.5, 10.0.0.0/16, fd00::/8), or both (v2,10.0.0.0/16)"

// ParseGID reads what people write: "" or "auto", an index, or a type, an
// address or a network, or type and address with a comma.
func ParseGID(text string) (c GIDChoice, err error) {
	if text == "" || text == "auto" {
		return c, nil
	}
	refused := fmt.Errorf("%.64q, allowed are %s", text, gidForm)
	switch index, err := strconv.ParseUint(text, 10, 8); {
	case err == nil:
		return GIDChoice{ByIndex: true, Index: int(index)}, nil
	case errors.Is(err, strconv.ErrRange):
		return c, fmt.Errorf("%.64q, allowed is an index from 0 to 255", text)
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		network, isNetwork := networkOf(part)
		switch {
		case (part == "v1" || part == "v2") && c.Type == AnyRoCE:
			c.Type = RoCEType(part[1] - '0')
		case isNetwork && !c.Within.IsValid():
			c.Within = network
		default:
			return GIDChoice{}, refused
		}
	}
	return c, nil
}

// networkOf reads an address or a network.
func networkOf(text string) (netip.Prefix, bool) {
	if network, err := netip.ParsePrefix(text); err == nil {
		if addr := network.Addr(); addr.Is4In6() && network.Bits() >= 96 { // as addresses are
			network = netip.PrefixFrom(addr.Unmap(), network.Bits()-96)
		}
		return network.Masked(), true
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, false
	}
	addr = addr.Unmap()
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// String is what ParseGID reads.
func (c GIDChoice) String() string {
	if c.ByIndex {
		return strconv.Itoa(c.Index)
	}
	var texts []string
	if c.Type != AnyRoCE {
		texts = append(texts, "v"+strconv.Itoa(int(c.Type)))
	}
	if c.Within.IsValid() {
		texts = append(texts, c.Within.String())
	}
	if len(texts) == 0 {
		return "auto"
	}
	return strings.Join(texts, ",")
}

func (c GIDChoice) allows(e gidEntry) bool {
	switch {
	case c.ByIndex:
		return e.index == c.Index
	case c.Type == RoCEv1 && e.kind != kindV1, c.Type == RoCEv2 && e.kind != kindV2:
		return false
	}
	return !c.Within.IsValid() || c.Within.Contains(e.addr.Unmap())
}

const placeForm = "the PCI address of a GPU (0000:41:00.0), or node:N"

// ParsePlace reads what a NIC should be near to; "" is nowhere.
func ParsePlace(text string) (Place, error) {
	if text == "" {
		return Place{}, nil
	}
	if digits, ok := strings.CutPrefix(text, "node:"); ok {
		if node, err := strconv.ParseUint(digits, 10, 16); err == nil {
			return Place{NUMANode: int(node) + 1}, nil
		}
	} else if pciAddress.MatchString(text) {
		return Place{PCIAddress: strings.ToLower(text)}, nil
	}
	return Place{}, fmt.Errorf("%.64q, allowed is %s", text, placeForm)
}

var pciAddress = regexp.MustCompile(`^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]$`)
