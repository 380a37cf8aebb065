package verbs

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/moewire/moewire/core/internal/libibverbs"
)

// gidEntry is a used entry of a port's table of addresses.
type gidEntry struct {
	index int
	addr  netip.Addr
	kind  string
}

// The kinds, as sysfs calls them.
const (
	kindV1 = "IB/RoCE v1"
	kindV2 = "RoCE v2"
)

// readGIDs reads a port's table. Entries that are not used are left out.
func readGIDs(sysfs, device string, port int) []gidEntry {
	dir := filepath.Join(sysfs, "class/infiniband", device, "ports", strconv.Itoa(port))
	files, _ := os.ReadDir(filepath.Join(dir, "gids"))
	var entries []gidEntry
	for _, f := range files {
		index, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		addr, err := netip.ParseAddr(word(dir, "gids/"+f.Name()))
		if err != nil || addr.IsUnspecified() {
			continue
		}
		// Entries that are not used give an error instead of a type.
		if kind := word(dir, "gid_attrs/types/"+f.Name()); kind != "" {
			entries = append(entries, gidEntry{index, addr, kind})
		}
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].index < entries[j].index })
	return entries
}

// gidsOf translates a table from the library.
func gidsOf(table []libibverbs.GIDEntry, port uint8) []gidEntry {
	kinds := map[uint32]string{
		libibverbs.GIDTypeIB: kindV1, libibverbs.GIDTypeRoCEv1: kindV1, libibverbs.GIDTypeRoCEv2: kindV2,
	}
	var entries []gidEntry
	for _, e := range table {
		if addr := netip.AddrFrom16(e.GID); e.Port == uint32(port) && !addr.IsUnspecified() {
			entries = append(entries, gidEntry{int(e.Index), addr, kinds[e.Type]})
		}
	}
	return entries
}

// chooseGID picks the entry to send from on Ethernet, among those that the choice allows.
// RoCE v2, which routers forward, comes first; RoCE v1 only if there is nothing else. An
// IPv4 address comes first, then a global IPv6 one, then one of the link. The first of
// equals.
func chooseGID(choice GIDChoice, entries []gidEntry) (int, error) {
	best, bestRank := -1, 0
	for _, e := range entries {
		if rank := e.rank(); rank > bestRank && choice.allows(e) {
			best, bestRank = e.index, rank
		}
	}
	switch {
	case choice.ByIndex && slices.ContainsFunc(entries, choice.allows):
		return choice.Index, nil
	case best >= 0:
		return best, nil
	case choice != GIDChoice{}:
		return 0, fmt.Errorf("GID is %v, which is none of %s", choice, listGIDs(entries))
	}
	return 0, fmt.Errorf("no RoCE address among %s: give the interface an IP address, or set GID", listGIDs(entries))
}

func (e gidEntry) rank() int {
	switch {
	case e.kind == kindV1:
		return 1
	case e.kind != kindV2:
		return 0
	case e.addr.Is4In6():
		return 4
	case e.addr.IsLinkLocalUnicast():
		return 2
	}
	return 3
}

func listGIDs(entries []gidEntry) string {
	texts := make([]string, 0, len(entries))
	for _, e := range entries {
		texts = append(texts, fmt.Sprintf("%d: %s (%s)", e.index, e.addr, e.kind))
	}
	return fmt.Sprintf("%d addresses [%s]", len(entries), strings.Join(texts, ", "))
}
