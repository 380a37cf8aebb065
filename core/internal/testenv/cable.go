package testenv

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Cable is a network of two ends that can lose, double, delay and reorder
// packets. It needs root, and a machine of its own: that of tests/rdma.
type Cable struct {
	t testing.TB
	// Addresses are those of the ends, Devices soft-RoCE devices on them: empty
	// between namespaces.
	Addresses, Devices [2]string
	nets, spaces       [2]string
}

// machineVariable is what only tests/rdma/init sets.
const machineVariable = "MOEWIRE_RDMA_MACHINE"

// needMachine keeps a cable, which changes the routes of the whole machine, off a
// person's own machine, whatever rights that person has there.
func needMachine(t testing.TB) {
	t.Helper()
	if os.Getenv(machineVariable) == "" {
		Lacking(t, "cable", machineVariable+" is set in the machine of tests/rdma only")
	}
}

// NewCable joins two network namespaces, until the test ends.
func NewCable(t testing.TB) *Cable {
	t.Helper()
	needMachine(t)
	c := &Cable{t: t, spaces: [2]string{"cable0", "cable1"}, nets: [2]string{"end", "end"}}
	c.Addresses = [2]string{"10.8.0.1", "10.8.0.2"}
	for _, space := range c.spaces {
		c.ip("netns", "add", space)
		t.Cleanup(func() { c.ip("netns", "del", space) })
	}
	c.ip("link", "add", "end", "netns", c.spaces[0], "type", "veth", "peer", "name", "end", "netns", c.spaces[1])
	for i, space := range c.spaces {
		c.ip("-n", space, "link", "set", "lo", "up")
		c.ip("-n", space, "addr", "add", c.Addresses[i]+"/24", "dev", "end")
		c.ip("-n", space, "link", "set", "end", "up")
	}
	return c
}

// NewDeviceCable joins two soft-RoCE devices, until the test ends; what sockets send to
// an end's address goes over it, too. Both addresses are this machine's own. So the
// routes and the neighbours have to be given, and the rule that routes come before own
// addresses: else nothing would go out.
func NewDeviceCable(t testing.TB) *Cable {
	t.Helper()
	needMachine(t)
	c := &Cable{t: t, nets: [2]string{"lossy0", "lossy1"}, Devices: [2]string{"rxel0", "rxel1"}}
	c.Addresses = [2]string{"10.7.0.1", "10.7.1.1"}
	c.ip("link", "add", c.nets[0], "type", "veth", "peer", "name", c.nets[1])
	t.Cleanup(func() { c.ip("link", "del", c.nets[0]) })
	for i, net := range c.nets {
		c.ip("addr", "add", c.Addresses[i]+"/24", "dev", net)
		c.ip("link", "set", net, "up")
		c.write("/proc/sys/net/ipv4/conf/"+net+"/accept_local", "1")
		c.write("/proc/sys/net/ipv4/conf/"+net+"/rp_filter", "0")
	}
	for i := range c.nets {
		c.routeTo(i)
		c.run("rdma", "link", "add", c.Devices[i], "type", "rxe", "netdev", c.nets[i])
		t.Cleanup(func() { c.run("rdma", "link", "delete", c.Devices[i]) })
	}
	c.ip("rule", "add", "pref", "100", "lookup", "local")
	c.ip("rule", "del", "pref", "0")
	t.Cleanup(func() {
		c.ip("rule", "add", "pref", "0", "lookup", "local")
		c.ip("rule", "del", "pref", "100")
	})
	return c
}

// SetUp sets the network of an end up or down; what sockets send over the loopback device
// goes on.
func (c *Cable) SetUp(end int, up bool) {
	c.t.Helper()
	state := map[bool]string{true: "up", false: "down"}[up]
	c.ip("link", "set", c.nets[end], state)
}

// routeTo sends what is meant for an end, and comes from here, out at the other.
func (c *Cable) routeTo(end int) {
	c.t.Helper()
	other, table := c.nets[1-end], strconv.Itoa(107+end)
	mac := strings.TrimSpace(c.read("/sys/class/net/" + c.nets[end] + "/address"))
	c.ip("neigh", "replace", c.Addresses[end], "lladdr", mac, "dev", other)
	c.ip("route", "add", c.Addresses[end], "dev", other, "src", c.Addresses[1-end], "table", table)
	rule := []string{"pref", "10", "iif", "lo", "to", c.Addresses[end], "lookup", table}
	c.ip(append([]string{"rule", "add"}, rule...)...)
	c.t.Cleanup(func() { c.ip(append([]string{"rule", "del"}, rule...)...) })
}

// Command is a command line that runs another one at an end.
func (c *Cable) Command(end int, words ...string) []string {
	if c.spaces[end] == "" {
		return words
	}
	return append([]string{"ip", "netns", "exec", c.spaces[end]}, words...)
}

// Be makes both directions do something to packets, in the words of tc-netem.
func (c *Cable) Be(what ...string) {
	c.t.Helper()
	for end, net := range c.nets {
		c.at(end, append([]string{"tc", "qdisc", "replace", "dev", net, "root", "netem", "limit", "10000"}, what...)...)
	}
}

var droppedForm = regexp.MustCompile(`dropped (\d+)`)

// NumDropped is how many packets the network has lost.
func (c *Cable) NumDropped() (sum int) {
	c.t.Helper()
	for end, net := range c.nets {
		text := c.at(end, "tc", "-s", "qdisc", "show", "dev", net)
		found := droppedForm.FindStringSubmatch(text)
		if found == nil {
			c.t.Fatalf("no number of lost packets: %s", text)
		}
		sum += c.number(found[1])
	}
	return sum
}

// NumOutOfOrder is how many packets were not expected yet where they came, by
// the devices or, without them, by the kernel's TCP.
func (c *Cable) NumOutOfOrder() int {
	c.t.Helper()
	return c.count("out_of_seq_request", "TCPOFOQueue")
}

// NumDoubled is how many came that had come before, in the same way.
func (c *Cable) NumDoubled() int {
	c.t.Helper()
	return c.count("duplicate_request", "TCPDSACKOldSent")
}

// count sums up one of the kernel's counters over both ends.
func (c *Cable) count(device, tcp string) (sum int) {
	c.t.Helper()
	for end, name := range c.Devices {
		if name == "" {
			sum += c.countTCP(end, tcp)
			continue
		}
		sum += c.number(c.read("/sys/class/infiniband/" + name + "/ports/1/hw_counters/" + device))
	}
	return sum
}

// countTCP reads one of what netstat(8) shows: a line of names, one of numbers.
func (c *Cable) countTCP(end int, name string) int {
	c.t.Helper()
	lines := strings.Split(c.at(end, "cat", "/proc/net/netstat"), "\n")
	for i, line := range lines[:len(lines)-1] {
		for j, word := range strings.Fields(line) {
			if word == name {
				return c.number(strings.Fields(lines[i+1])[j])
			}
		}
	}
	c.t.Fatalf("the kernel does not count %s", name)
	return 0
}

func (c *Cable) ip(args ...string) {
	c.t.Helper()
	c.run("ip", args...)
}

func (c *Cable) at(end int, words ...string) string {
	c.t.Helper()
	words = c.Command(end, words...)
	return c.run(words[0], words[1:]...)
}

func (c *Cable) run(name string, args ...string) string {
	c.t.Helper()
	text, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, text)
	}
	return string(text)
}

func (c *Cable) read(file string) string {
	c.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

func (c *Cable) write(file, text string) {
	c.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cable) number(text string) int {
	c.t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}
