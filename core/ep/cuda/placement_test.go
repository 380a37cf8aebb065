package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/testenv"
)

func oneHost(a, b int) bool { return true }

// paramsFor are those of ranks with these links, by the configuration of each.
func paramsFor(t *testing.T, all ...cuda.Config) (params [][]byte) {
	for _, c := range all {
		p, err := c.Params(ep.Standing{})
		require.NoError(t, err)
		require.LessOrEqual(t, len(p), 256)
		params = append(params, p)
	}
	return params
}

// on is a rank's configuration on a device that has native atomics with others.
func on(t *testing.T, order cuda.Placement, own uint64, native ...uint64) cuda.Config {
	c := configOf(t, 3)
	c.Placement, c.Links = order, device.Links{Device: own, Native: native}
	return c
}

// TestAgreePlacement: one pair of ranks that share memory and do not know of native
// atomics is enough, unless the group has begun.
func TestAgreePlacement(t *testing.T) {
	const none, quick, counts = cuda.PlacementOpen, cuda.PlacementFirstCome, cuda.PlacementByCounts
	first := on(t, none, 1, 2, 3)
	asked := on(t, none, 2)
	asked.Deterministic = true
	for name, c := range map[string]struct {
		all      []cuda.Config
		sameHost func(a, b int) bool
		want     cuda.Placement
		why      string
	}{
		"one device":        {[]cuda.Config{on(t, none, 1), on(t, none, 1)}, oneHost, quick, ""},
		"all linked":        {[]cuda.Config{first, on(t, none, 2, 1, 3), on(t, none, 3, 2, 1)}, oneHost, quick, ""},
		"one of them sees":  {[]cuda.Config{first, on(t, none, 2, 3), on(t, none, 3)}, oneHost, quick, ""},
		"not linked":        {[]cuda.Config{first, on(t, none, 2, 1), on(t, none, 3, 1)}, oneHost, counts, "ranks 1 and 2"},
		"nobody sees":       {[]cuda.Config{on(t, none, 1), on(t, none, 2)}, oneHost, counts, "ranks 0 and 1"},
		"remote":            {[]cuda.Config{first, on(t, none, 2, 1), on(t, none, 3, 1)}, func(a, b int) bool { return a+b < 3 }, quick, ""},
		"joins a quick one": {[]cuda.Config{on(t, quick, 1, 2), on(t, none, 2)}, oneHost, quick, ""},
		"joins one of both": {[]cuda.Config{on(t, counts, 1, 2), on(t, none, 2)}, oneHost, counts, "begun so"},
		"goes on without":   {[]cuda.Config{on(t, counts, 1), on(t, counts, 2)}, oneHost, counts, "ranks 0 and 1"},
		"asked for it":      {[]cuda.Config{asked, asked}, oneHost, counts, ""},
	} {
		order, why, err := cuda.AgreePlacement(paramsFor(t, c.all...), c.sameHost)
		require.NoError(t, err, name)
		require.Equal(t, c.want, order, name)
		require.Contains(t, why, c.why, name)
		require.Equal(t, c.why == "", why == "", name)
	}
	many := first
	for d := range uint64(40) {
		many.Links.Native = append(many.Links.Native, 100+d)
	}
	order, _, err := cuda.AgreePlacement(paramsFor(t, many, on(t, none, 139)), oneHost)
	require.NoError(t, err)
	require.Equal(t, counts, order, "it is not told of")
	absent := paramsFor(t, first, on(t, none, 9), on(t, none, 3))
	absent[1] = nil
	order, _, err = cuda.AgreePlacement(absent, oneHost)
	require.NoError(t, err)
	require.Equal(t, quick, order)
}

// TestPlacementIsNotChanged: graphs that were recorded have that of the group's beginning.
func TestPlacementIsNotChanged(t *testing.T) {
	all := paramsFor(t, on(t, cuda.PlacementFirstCome, 1), on(t, cuda.PlacementOpen, 2))
	_, _, err := cuda.AgreePlacement(all, oneHost)
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.ErrorContains(t, err, "ranks 0 and 1 have no native atomics")
	require.ErrorContains(t, err, "deterministic")
	all = paramsFor(t, on(t, cuda.PlacementFirstCome, 1), on(t, cuda.PlacementByCounts, 1))
	_, _, err = cuda.AgreePlacement(all, oneHost)
	require.ErrorIs(t, err, ep.ErrMismatch)
	all[1][8*4] = 3
	_, _, err = cuda.AgreePlacement(all[1:], oneHost)
	require.ErrorIs(t, err, ep.ErrMismatch)
}

// apart are ranks on devices of their own, not connected.
func apart(t *testing.T, emu *cudatest.Driver, ranks int, change func(*cuda.Config)) (all []*rank) {
	emu.Schedule(testenv.Seed(t), 16, 8)
	for r, dom := range inproc.New(ranks, layout.ControlBytes) {
		d, err := device.Open(emu.Library, r, emu.Code(t))
		require.NoError(t, err)
		cfg := configOf(t, ranks)
		change(&cfg)
		all = append(all, newRankOn(t, d, emu, dom, cfg))
	}
	t.Cleanup(func() { closeAll(all) })
	return all
}

// TestConnectNeedsAtomics: devices without are refused, by name, unless the rows are
// by counts. Then no memory is left mapped.
func TestConnectNeedsAtomics(t *testing.T) {
	emu := cudatest.Emulate(t)
	t.Setenv("EMULATOR_DEVICES", "2")
	for _, without := range []string{"1", "0-1", "1-0"} {
		t.Setenv("EMULATOR_NO_ATOMICS", without)
		all := apart(t, emu, 2, func(*cuda.Config) {})
		for r, one := range all {
			err := one.Connect(connectIn)
			require.ErrorIs(t, err, ep.ErrInvalid, without)
			require.ErrorContains(t, err, "no native atomics")
			require.ErrorContains(t, err, "deterministic")
			require.Empty(t, one.Path(1-r))
		}
	}
	t.Setenv("EMULATOR_NO_ATOMICS", "2-3")
	for _, r := range apart(t, emu, 2, func(*cuda.Config) {}) {
		require.NoError(t, r.Connect(connectIn))
		require.Equal(t, "fd", r.Path(1-r.self))
	}
}

// TestRowsByCounts: with devices that lose additions to one another's memory, ranks that
// have agreed on that order get all rows, in order of rank.
func TestRowsByCounts(t *testing.T) {
	emu := cudatest.Emulate(t)
	t.Setenv("EMULATOR_DEVICES", "3")
	t.Setenv("EMULATOR_NO_ATOMICS", "1")
	for name, change := range map[string]func(*cuda.Config){
		"agreed": func(c *cuda.Config) { c.Placement = cuda.PlacementByCounts },
		"asked":  func(c *cuda.Config) { c.Deterministic = true },
	} {
		t.Run(name, func(t *testing.T) {
			all := apart(t, emu, 3, change)
			for _, r := range all {
				require.NoError(t, r.Connect(connectIn))
			}
			for round := range uint64(8) {
				some := ops(t, all, round)
				roundOf(some)
				for r := range some {
					checkRows(some, r)
					checkOrder(some[r])
				}
			}
		})
	}
}

// checkOrder: each rank's rows begin where those of the ranks before it end.
func checkOrder(o *op) {
	local, ranks := int(o.res.Slab.LocalExperts), o.r.ranks
	o.r.must(func() error {
		ranges := cudatest.Read[int64](o.r.t, o.r.emu, o.res.LayoutRange, local*ranks)
		for l := range local {
			next := int64(0)
			for _, at := range ranges[l*ranks:][:ranks] {
				if n := at & 0xffffffff; n > 0 {
					require.Equal(o.r.t, next, at>>32)
					next += n
				}
			}
		}
		return nil
	})
}
