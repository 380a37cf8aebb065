package verbs

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Device is an RDMA device of this host, as sysfs shows it.
type Device struct {
	Name string
	// NUMANode is -1 where the kernel does not say.
	NUMANode int
	// PCIPath leads from the root to the device, one address per bridge; empty
	// for devices made of software.
	PCIPath []string
	Ports   []Port
}

// Port is a port of a device.
type Port struct {
	Num       int
	Active    bool
	LinkLayer string // "InfiniBand" or "Ethernet"
	RateGbps  float64
}

// Place is where something is in the machine. The zero value is nowhere.
type Place struct {
	// PCIAddress is that of a GPU, for example "0000:41:00.0"; empty: none.
	PCIAddress string
	// NUMANode counts from 1 here, so that 0 is none: node 0 is 1.
	NUMANode int
}

// Devices lists this host's RDMA devices by name. None is no error.
func Devices() ([]Device, error) { return devicesIn("/sys") }

func devicesIn(sysfs string) ([]Device, error) {
	folder := filepath.Join(sysfs, "class/infiniband")
	entries, err := os.ReadDir(folder)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list of RDMA devices: %w", err)
	}
	devices := make([]Device, 0, len(entries))
	for _, e := range entries {
		devices = append(devices, readDevice(filepath.Join(folder, e.Name())))
	}
	return devices, nil
}

// readDevice reads what there is: a device that is vanishing shows less.
func readDevice(folder string) Device {
	d := Device{Name: filepath.Base(folder), NUMANode: -1}
	if node, err := strconv.Atoi(word(folder, "device/numa_node")); err == nil {
		d.NUMANode = node
	}
	if target, err := filepath.EvalSymlinks(filepath.Join(folder, "device")); err == nil {
		d.PCIPath = pciPath(target)
	}
	ports, _ := os.ReadDir(filepath.Join(folder, "ports"))
	for _, p := range ports {
		num, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(folder, "ports", p.Name())
		d.Ports = append(d.Ports, Port{
			Num:       num,
			Active:    strings.HasPrefix(word(dir, "state"), "4:"),
			LinkLayer: word(dir, "link_layer"),
			RateGbps:  number(word(dir, "rate")),
		})
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return a.Num - b.Num })
	return d
}

// word is the text of a small file, "" if it cannot be read.
func word(dir, name string) string {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// number is the number that a text like "100 Gb/sec (4X EDR)" begins with.
func number(text string) float64 {
	first, _, _ := strings.Cut(text, " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}

// pciPath picks the PCI addresses out of a path below /sys/devices.
func pciPath(path string) []string {
	var addresses []string
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, "pci") || isPCIAddress(part) {
			addresses = append(addresses, part)
		}
	}
	return addresses
}

// isPCIAddress knows texts like 0000:41:00.0.
func isPCIAddress(text string) bool {
	return len(text) >= 12 && strings.Count(text, ":") == 2 && text[len(text)-2] == '.'
}

func nearestIn(sysfs string, devices []Device, near Place) []Device {
	path := pathOf(sysfs, near)
	sorted := slices.Clone(devices)
	slices.SortStableFunc(sorted, func(a, b Device) int {
		return cmp.Or(compare(path, a, b, near), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}

// pathOf is where a place is in the PCI tree; nil if that is not known.
func pathOf(sysfs string, near Place) []string {
	if near.PCIAddress == "" {
		return nil
	}
	target, err := filepath.EvalSymlinks(filepath.Join(sysfs, "bus/pci/devices", strings.ToLower(near.PCIAddress)))
	if err != nil {
		return nil
	}
	return pciPath(target)
}

// compare is negative if a is the better one for a place, 0 if neither is.
func compare(path []string, a, b Device, near Place) int {
	return cmp.Or(
		-compareBool(a.active(), b.active()),
		cmp.Compare(hops(path, a.PCIPath), hops(path, b.PCIPath)),
		-compareBool(a.onNode(near), b.onNode(near)),
		-cmp.Compare(a.rate(), b.rate()),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func (d Device) active() bool {
	return slices.ContainsFunc(d.Ports, func(p Port) bool { return p.Active })
}

func (d Device) onNode(p Place) bool { return p.NUMANode > 0 && d.NUMANode == p.NUMANode-1 }

func (d Device) rate() (best float64) {
	for _, p := range d.Ports {
		if p.Active {
			best = max(best, p.RateGbps)
		}
	}
	return best
}

// unknownHops is farther than any way inside one machine.
const unknownHops = 1 << 10

// hops is the number of steps from one place of the PCI tree to another, up to
// what they share and down again.
func hops(a, b []string) int {
	shared := 0
	for shared < min(len(a), len(b)) && a[shared] == b[shared] {
		shared++
	}
	if shared == 0 {
		return unknownHops
	}
	return len(a) + len(b) - 2*shared
}
