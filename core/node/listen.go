package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// listenOf reads an address, with or without a port, or an interface.
func listenOf(given string) (at netip.AddrPort, err error) {
	if given == "" {
		return at, nil
	}
	if at, err = hostPortOf(given); err != nil {
		return at, wrong("listen", " is %q: %v", given, err)
	}
	if at.Addr().IsUnspecified() || at.Addr().IsMulticast() {
		return at, wrong("listen", " is %q, allowed an address of one interface: peers are told it", given)
	}
	return at, nil
}

// unbracketed removes the brackets of an IPv6 address that has no port: "[::1]". Other
// text stays as it is.
func unbracketed(s string) string {
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") && strings.Contains(inner, ":") {
		return strings.TrimSuffix(inner, "]")
	}
	return s
}

func hostPortOf(s string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at, nil
	}
	if addr, err := netip.ParseAddr(unbracketed(s)); err == nil {
		return netip.AddrPortFrom(addr, 0), nil
	}
	nic, err := net.InterfaceByName(s)
	if err != nil {
		return netip.AddrPort{}, errors.New("no address, ADDRESS:PORT or interface of this machine")
	}
	addrs, err := nic.Addrs()
	if err != nil {
		return netip.AddrPort{}, err
	}
	return firstOf(s, addrs)
}

// firstOf prefers an address that needs no zone.
func firstOf(nic string, addrs []net.Addr) (netip.AddrPort, error) {
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && !p.Addr().IsLinkLocalUnicast() {
			return netip.AddrPortFrom(p.Addr().Unmap(), 0), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("interface %s has no address that others can use", nic)
}
