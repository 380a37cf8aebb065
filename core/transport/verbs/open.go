package verbs

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

func load() (*libibverbs.Library, error) {
	lib, err := libibverbs.Load()
	if errors.Is(err, dl.ErrNoLibrary) || errors.Is(err, dl.ErrNoSymbol) {
		return nil, fmt.Errorf("verbs: %w: %w", transport.ErrNotSupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	return lib, nil
}

// openAs opens a port of a group: its endpoints have numbers that no others of
// the group have.
func openAs(lib *libibverbs.Library, config Config, m *member) (*Transport, error) {
	t := &Transport{lib: lib, config: config, member: uint8(m.index), byQP: map[libibverbs.QP]*endpoint{}, bySRQ: map[libibverbs.SRQ]*endpoint{}}
	t.lastID.Store(uint64(m.index)<<56 | m.numOpens<<40)
	for _, step := range []func() error{
		t.openDevice, t.findPort, t.locate, t.setLimits, t.makeQueue, t.tryQueuePair, t.findDC, t.watch,
	} {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("verbs: %w", err), t.destroy())
		}
	}
	return t, nil
}

// openDevice opens the configured device, or the best one.
func (t *Transport) openDevice() error {
	nics, err := choices(t.lib, &t.config)
	if err != nil {
		return err
	}
	t.device = nics[0].Device
	t.config.Port = nics[0].Port
	t.ctx, err = t.lib.OpenDevice(t.device)
	if errors.Is(err, syscall.ENODEV) {
		names, _ := t.lib.DeviceNames()
		return fmt.Errorf("%w: %w; there are: %s", transport.ErrNotSupported, err, strings.Join(names, ", "))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", transport.ErrNotSupported, err)
	}
	return sys.SetNonblocking(t.ctx.AsyncFD())
}

// choices are the ports of this host that a configuration allows, the best
// first.
func choices(lib *libibverbs.Library, config *Config) ([]NIC, error) {
	names, err := lib.DeviceNames()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrNotSupported, err)
	}
	known, err := Devices()
	if err != nil {
		return nil, err
	}
	return choose("/sys", known, names, config)
}

// findPort settles the port: the configured one, or the first active one.
func (t *Transport) findPort() error {
	attr, err := t.lib.QueryDevice(t.ctx)
	if err != nil {
		return err
	}
	states := make([]string, 0, attr.PhysPortCnt)
	for port := 1; port <= int(attr.PhysPortCnt); port++ {
		if t.config.Port != 0 && port != t.config.Port {
			continue
		}
		p, err := t.lib.QueryPort(t.ctx, uint8(port))
		if err != nil {
			return err
		}
		if p.State == libibverbs.PortActive {
			t.port = uint8(port)
			return nil
		}
		states = append(states, fmt.Sprintf("port %d is in state %d", port, p.State))
	}
	return fmt.Errorf("%w: %s has no active port (%s; 4 is active), of %d",
		transport.ErrNotSupported, t.device, strings.Join(states, ", "), attr.PhysPortCnt)
}

func (t *Transport) portActive() (bool, error) {
	p, err := t.lib.QueryPort(t.ctx, t.port)
	return err == nil && p.State == libibverbs.PortActive, err
}

// locate reads where the port is in its network. Done again when that changes.
func (t *Transport) locate() error {
	port, err := t.lib.QueryPort(t.ctx, t.port)
	if err != nil {
		return err
	}
	index, err := t.findGID(port)
	if err != nil {
		return err
	}
	gid, err := t.lib.QueryGID(t.ctx, t.port, index)
	if err != nil {
		return err
	}
	t.placeMu.Lock()
	defer t.placeMu.Unlock()
	t.gid = uint8(index)
	t.place.linkLayer = max(port.LinkLayer, libibverbs.LinkInfiniBand)
	t.place.mtu = uint8(port.ActiveMTU)
	t.place.lid = port.LID
	t.place.needsRoute = port.Flags&libibverbs.PortFlagGRH != 0
	t.place.gid = gid
	return nil
}

// maxGIDs is how many used entries the library is asked for at once: the
// kernel takes no more than 64 KiB of them.
const maxGIDs = 1024

func (t *Transport) findGID(port *libibverbs.PortAttr) (int, error) {
	choice := t.config.GID
	if port.LinkLayer != libibverbs.LinkEthernet {
		if choice.Type != AnyRoCE || choice.Within.IsValid() {
			return 0, fmt.Errorf("GID is %v, allowed on InfiniBand, as %s is, is an index", choice, t.Device())
		}
		return choice.Index, nil // the first is always there
	}
	entries := t.gids()
	if len(entries) == 0 && choice.ByIndex {
		return choice.Index, nil // the table is hidden: the device will say
	}
	return chooseGID(choice, entries)
}

// gids are the used entries of the port's table.
func (t *Transport) gids() []gidEntry {
	if t.lib.HasGIDTable() {
		if table, err := t.lib.QueryGIDTable(t.ctx, maxGIDs); err == nil {
			return gidsOf(table, t.port)
		}
	}
	return readGIDs("/sys", t.device, int(t.port)) // slower
}

// setLimits lowers the configured bounds to those of the device.
func (t *Transport) setLimits() error {
	attr, err := t.lib.QueryDevice(t.ctx)
	if err != nil {
		return err
	}
	port, err := t.lib.QueryPort(t.ctx, t.port)
	if err != nil {
		return err
	}
	c := t.config
	for name, v := range map[string][2]int{
		"SendDepth":    {c.SendDepth, int(attr.MaxQPWR)},
		"RecvDepth":    {c.RecvDepth, int(attr.MaxQPWR)},
		"NumEndpoints": {c.NumEndpoints, int(attr.MaxQP)},
	} {
		if v[0] > v[1] {
			return fmt.Errorf("%s is %d, %s has %d", name, v[0], t.device, v[1])
		}
	}
	t.limits = transport.Limits{
		NumEndpoints:    c.NumEndpoints,
		SendDepth:       c.SendDepth,
		RecvDepth:       c.RecvDepth,
		NumPieces:       min(c.NumPieces, int(attr.MaxSGE), int(max(attr.MaxSGERd, 1))),
		InlineBytes:     c.InlineBytes,
		MaxRequestBytes: int64(port.MaxMsgSz),
	}
	t.maxRegionBytes = attr.MaxMRSize
	if c.MaxRegionBytes > 0 {
		t.maxRegionBytes = min(t.maxRegionBytes, uint64(c.MaxRegionBytes))
	}
	t.place.readDepth = uint8(max(0, min(attr.MaxQPRdAtom, maxReadDepth)))
	t.readsUnderWay = uint8(max(0, min(attr.MaxQPInitRdAtom, maxReadDepth)))
	return t.setCompletions(int(attr.MaxCQE))
}

func (t *Transport) setCompletions(most int) error {
	t.numCompletions = t.config.NumCompletions
	if t.numCompletions == 0 {
		all := t.limits.NumEndpoints * (t.limits.SendDepth + t.limits.RecvDepth)
		t.numCompletions = min(all, most, 1<<16)
	}
	if t.numCompletions > most {
		return fmt.Errorf("NumCompletions is %d, %s has %d", t.numCompletions, t.device, most)
	}
	return nil
}

// makeQueue makes what all endpoints share.
func (t *Transport) makeQueue() (err error) {
	if t.pd, err = t.lib.AllocPD(t.ctx); err != nil {
		return shortage(err)
	}
	if t.channel, err = t.lib.CreateCompChannel(t.ctx); err != nil {
		return shortage(err)
	}
	if err = sys.SetNonblocking(t.channel.FD()); err != nil {
		return err
	}
	if t.cq, err = t.lib.CreateCQ(t.ctx, t.numCompletions, t.channel); err != nil {
		return shortage(err)
	}
	if err = t.poll.start(t.ctx.Poller(t.cq)); err != nil {
		return err
	}
	n := t.limits.NumEndpoints
	t.table = make([]atomic.Pointer[endpoint], n)
	for i := n - 1; i >= 0; i-- {
		t.free = append(t.free, i)
	}
	t.poll.failed = make([]*endpoint, 0, n)
	t.events.start(n)
	return nil
}

func shortage(err error) error {
	if isShortage(err) {
		return fmt.Errorf("%w: %w", transport.ErrNoResource, err)
	}
	return err
}

// tryQueuePair makes a queue pair and destroys it: devices say only so how
// much inline data they take.
func (t *Transport) tryQueuePair() error {
	spec := transport.EndpointSpec{SendDepth: t.limits.SendDepth, RecvDepth: t.limits.RecvDepth}
	for {
		qp, err := t.createQP(spec, t.limits.InlineBytes)
		if err == nil {
			return t.lib.DestroyQP(qp)
		}
		if t.limits.InlineBytes == 0 || errors.Is(err, transport.ErrNoResource) {
			return err
		}
		t.limits.InlineBytes /= 2
	}
}

// watch makes Wait see completions and events.
func (t *Transport) watch() error {
	listener := t.lib.Listener(t.channel, t.poll.spare)
	return t.wait.start(listener, t.channel.FD(), t.ctx.AsyncFD())
}
