package verbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// NIC is one port of one device.
type NIC struct {
	Device string
	Port   int // 0: the first active one
}

// String is "mlx5_0/1".
func (n NIC) String() string {
	if n.Port == 0 {
		return n.Device
	}
	return fmt.Sprintf("%s/%d", n.Device, n.Port)
}

// choose lists the ports that may be used, the best first, out of the devices
// that the library can open. known is what sysfs shows of them.
func choose(sysfs string, known []Device, names []string, c *Config) ([]NIC, error) {
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: no RDMA device", transport.ErrNotSupported)
	}
	if c.Device != "" {
		return []NIC{{c.Device, c.Port}}, nil
	}
	var devices []Device
	for _, d := range known {
		d.Ports = slices.DeleteFunc(slices.Clone(d.Ports), func(p Port) bool {
			return !c.Devices.allows(d.Name, p.Num) || c.Port != 0 && c.Port != p.Num
		})
		if slices.Contains(names, d.Name) && len(d.Ports) > 0 {
			devices = append(devices, d)
		}
	}
	nics := nicsOf(rotate(sysfs, nearestIn(sysfs, devices, c.Near), c))
	if len(known) == 0 { // sysfs is hidden
		for _, name := range names {
			if c.Devices.allows(name, max(c.Port, 1)) {
				nics = append(nics, NIC{name, c.Port})
			}
		}
	}
	if len(nics) == 0 {
		return nil, fmt.Errorf("%w: devices %q are none of: %s", transport.ErrNotSupported, c.Devices, describe(known, names))
	}
	return nics, nil
}

// rotate moves the devices that are as good as the first one round, so that
// each turn has another one in front.
func rotate(sysfs string, sorted []Device, c *Config) []Device {
	equal := 0
	path := pathOf(sysfs, c.Near)
	for equal < len(sorted) && compare(path, sorted[0], sorted[equal], c.Near) == 0 {
		equal++
	}
	if equal < 2 {
		return sorted
	}
	turn := c.Turn % equal
	return slices.Concat(sorted[turn:equal], sorted[:turn], sorted[equal:])
}

// nicsOf lists the ports, the active ones of all devices first.
func nicsOf(devices []Device) (nics []NIC) {
	for _, active := range []bool{true, false} {
		for _, d := range devices {
			for _, p := range d.Ports {
				if p.Active == active {
					nics = append(nics, NIC{d.Name, p.Num})
				}
			}
		}
	}
	return nics
}

func describe(known []Device, names []string) string {
	texts := slices.Clone(names)
	for i, name := range texts {
		for _, d := range known {
			if d.Name == name {
				texts[i] = fmt.Sprintf("%s (%d ports)", name, len(d.Ports))
			}
		}
	}
	return strings.Join(texts, ", ")
}

// Here is the NUMA node that this process may run on, nowhere if there are
// several, or the kernel does not say.
func Here() Place {
	cpus, err := sys.CPUs()
	if err != nil {
		return Place{}
	}
	return placeOf("/sys", cpus)
}

func placeOf(sysfs string, cpus []int) (p Place) {
	folders, _ := filepath.Glob(filepath.Join(sysfs, "devices/system/node/node[0-9]*"))
	if len(folders) < 2 {
		return p // all is equally near
	}
	for _, folder := range folders {
		node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(folder), "node"))
		list, listErr := cpuList(word(folder, "cpulist"))
		if errors.Join(err, listErr) != nil {
			return Place{}
		}
		if !slices.ContainsFunc(cpus, func(cpu int) bool { return slices.Contains(list, cpu) }) {
			continue
		}
		if p.NUMANode != 0 {
			return Place{}
		}
		p.NUMANode = node + 1
	}
	return p
}

// cpuList reads texts like "0-3,8".
func cpuList(text string) (list []int, err error) {
	if text == "" {
		return nil, nil // a node of memory alone
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		lo, err := strconv.Atoi(first)
		hi := lo
		if err == nil && isRange {
			hi, err = strconv.Atoi(last)
		}
		if err != nil || hi-lo >= 1<<16 {
			return nil, fmt.Errorf("list of processors %q: %w", text, os.ErrInvalid)
		}
		for ; lo <= hi; lo++ {
			list = append(list, lo)
		}
	}
	return list, nil
}
