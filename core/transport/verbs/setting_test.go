package verbs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

func TestParseDevices(t *testing.T) {
	for text, allowed := range map[string]string{
		"":                    "mlx5_0:1 mlx5_0:2 mlx5_10:1 rxe0:1",
		"*":                   "mlx5_0:1 mlx5_0:2 mlx5_10:1 rxe0:1",
		"mlx5_0":              "mlx5_0:1 mlx5_0:2",
		"mlx5_0:2, rxe0":      "mlx5_0:2 rxe0:1",
		"mlx5_1*":             "mlx5_10:1",
		"mlx5_*:1":            "mlx5_0:1 mlx5_10:1",
		"mlx5_9":              "",
		"bnxt_re-bond.4,rxe0": "rxe0:1",
	} {
		f, err := ParseDevices(text)
		require.NoError(t, err, text)
		var got []string
		for _, n := range []NIC{{"mlx5_0", 1}, {"mlx5_0", 2}, {"mlx5_10", 1}, {"rxe0", 1}} {
			if f.allows(n.Device, n.Port) {
				got = append(got, strings.Replace(n.String(), "/", ":", 1))
			}
		}
		assert.Equal(t, allowed, strings.Join(got, " "), text)
		assert.Equal(t, strings.ReplaceAll(text, " ", ""), f.String())
	}
	for _, text := range []string{",", "a,", "a b", "mlx5_0:0", "mlx5_0:x", "mlx5_0:256", "../x", ":1", "a*b", strings.Repeat("x", 64), "a:+1", "a:"} {
		_, err := ParseDevices(text)
		require.ErrorContains(t, err, "allowed are names of devices", text)
	}
	for text, say := range map[string]string{
		",":            `"," with an empty name,`,
		"mlx5_0,":      `"mlx5_0," with an empty name,`,
		" ":            `" " with an empty name,`,
		":1":           `":1" with an empty name,`,
		"a, b c":       `"a, b c" with the name "b c",`,
		"mlx5_0:0,a":   `"mlx5_0:0,a" with the port "0", not 1 to 255,`,
		"mlx5_0,rxe0:": `"mlx5_0,rxe0:" with the port "", not 1 to 255,`,
	} {
		_, err := ParseDevices(text)
		require.ErrorContains(t, err, say)
	}
}

func TestParseGID(t *testing.T) {
	for text, want := range map[string]GIDChoice{
		"":                    {},
		"auto":                {},
		"0":                   {ByIndex: true},
		"255":                 {ByIndex: true, Index: 255},
		"v1":                  {Type: RoCEv1},
		"10.0.0.5":            {Within: netip.MustParsePrefix("10.0.0.5/32")},
		"::ffff:10.0.0.5":     {Within: netip.MustParsePrefix("10.0.0.5/32")},
		"10.1.2.3/16":         {Within: netip.MustParsePrefix("10.1.0.0/16")},
		"::ffff:10.1.2.3/112": {Within: netip.MustParsePrefix("10.1.0.0/16")},
		"fd00::/8":            {Within: netip.MustParsePrefix("fd00::/8")},
		"v2,10.0.0.0/16":      {Type: RoCEv2, Within: netip.MustParsePrefix("10.0.0.0/16")},
		"10.0.0.0/16, v2":     {Type: RoCEv2, Within: netip.MustParsePrefix("10.0.0.0/16")},
		"v2,fe80::9a03:9bff:": {}, // refused
	} {
		got, err := ParseGID(text)
		if strings.HasSuffix(text, "ff:") {
			require.ErrorContains(t, err, "allowed are an index (3), or v1 or v2")
			continue
		}
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
		again, err := ParseGID(got.String())
		require.NoError(t, err)
		assert.Equal(t, got, again)
	}
	for _, text := range []string{"256", "-1", "v3", "v1,v2", "v2,", "10.0.0.1,10.0.0.2", "fe80::1%eth0", "roce", "3,v2", "+3", ",", " ", strings.Repeat("9", 30)} {
		_, err := ParseGID(text)
		require.ErrorContains(t, err, "allowed", text)
	}
}

func TestParsePlace(t *testing.T) {
	for text, want := range map[string]Place{
		"": {}, "node:0": {NUMANode: 1}, "node:7": {NUMANode: 8}, "0000:C1:00.0": {PCIAddress: "0000:c1:00.0"},
	} {
		got, err := ParsePlace(text)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, text := range []string{"node:", "node:-1", "node:x", "node:+1", "node:65536", " ", "cuda:0", "41:00.0", "0000:41:00.9", "../../x"} {
		_, err := ParsePlace(text)
		require.ErrorContains(t, err, "allowed is the PCI address of a GPU", text)
	}
}

func TestChosenGID(t *testing.T) {
	entry := func(index int, kind, addr string) gidEntry {
		return gidEntry{index, netip.MustParseAddr(addr), kind}
	}
	entries := []gidEntry{
		entry(0, kindV1, "fe80::1"), entry(1, kindV2, "fe80::1"), entry(2, kindV1, "::ffff:10.0.0.1"),
		entry(3, kindV2, "::ffff:10.0.0.1"), entry(4, kindV2, "fd00::1"), entry(5, kindV2, "::ffff:10.0.9.1"), entry(6, "", "fd00::2"),
	}
	for text, want := range map[string]int{
		"auto": 3, "1": 1, "6": 6, "v1": 0, "v2": 3, "10.0.9.1": 5, "10.0.9.0/24": 5, "fd00::/8": 4,
		"v1,10.0.0.0/8": 2, "v2,fe80::/10": 1,
	} {
		choice, err := ParseGID(text)
		require.NoError(t, err)
		got, err := chooseGID(choice, entries)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"7", "10.1.0.0/16", "v1,fd00::/8"} {
		choice, err := ParseGID(text)
		require.NoError(t, err)
		_, err = chooseGID(choice, entries)
		require.ErrorContains(t, err, "none of 7 addresses [0: fe80::1 (IB/RoCE v1), 1: fe80::1 (RoCE v2)", text)
	}
}

// TestGIDOfTheDevice: the choice is made in the table that the library gives,
// told to the peer and to the queue pair; and a table without it is an error.
func TestGIDOfTheDevice(t *testing.T) {
	f := newFake(t)
	four := [16]byte{10: 0xff, 0xff, 10, 0, 9, 1}
	f.gids = []libibverbs.GIDEntry{
		{GID: [16]byte{0xfe, 0x80, 15: 1}, Index: 1, Port: 1, Type: libibverbs.GIDTypeRoCEv2},
		{GID: four, Index: 5, Port: 2, Type: libibverbs.GIDTypeRoCEv2},
		{GID: four, Index: 7, Port: 1, Type: libibverbs.GIDTypeRoCEv2},
	}
	choice, err := ParseGID("v2,10.0.0.0/16")
	require.NoError(t, err)
	tr := f.open(Config{GID: choice})
	assert.EqualValues(t, 7, tr.gid)
	a, b := connected(t, tr, 1)
	assert.EqualValues(t, 7, a.(*endpoint).local.gid[15], "the entry's")
	// The table changes between: the queue pair keeps what the peer was told.
	tr.gid = 1
	assert.EqualValues(t, 7, a.(*endpoint).route(b.(*endpoint).local).SGIDIndex)

	choice.Within = netip.MustParsePrefix("10.1.0.0/16")
	_, err = f.tryOpen(Config{GID: choice})
	require.ErrorContains(t, err, "GID is v2,10.1.0.0/16, which is none of 2 addresses [1: fe80::1 (RoCE v2), 7: ::ffff:10.0.9.1 (RoCE v2)]")
	f.linkType = libibverbs.LinkInfiniBand
	_, err = f.tryOpen(Config{GID: choice})
	require.ErrorContains(t, err, "allowed on InfiniBand, as fake0/1 is, is an index")
}

// TestChoose: which port a rank takes, on a machine with four NICs.
func TestChoose(t *testing.T) {
	sysfs := twoSockets(t)
	known, err := devicesIn(sysfs)
	require.NoError(t, err)
	names := []string{"mlx5_3", "mlx5_2", "mlx5_1", "mlx5_0", "soft0"}
	node1, gpu0 := Place{NUMANode: 2}, Place{PCIAddress: "0000:03:00.0"}
	for name, c := range map[string]struct {
		config  Config
		devices string
		want    string
	}{
		"first of equals":  {Config{}, "", "mlx5_0/1 mlx5_3/1 mlx5_2/1 soft0/1 mlx5_1/1"},
		"second of equals": {Config{Turn: 1}, "", "mlx5_3/1 mlx5_0/1 mlx5_2/1 soft0/1 mlx5_1/1"},
		"round again":      {Config{Turn: 6}, "", "mlx5_0/1 mlx5_3/1 mlx5_2/1 soft0/1 mlx5_1/1"},
		"node 1":           {Config{Near: node1, Turn: 1}, "", "mlx5_3/1 mlx5_0/1 mlx5_2/1 soft0/1 mlx5_1/1"},
		"a GPU":            {Config{Near: gpu0, Turn: 1}, "", "mlx5_0/1 mlx5_2/1 mlx5_3/1 soft0/1 mlx5_1/1"},
		"filter":           {Config{}, "mlx5_1,mlx5_2", "mlx5_2/1 mlx5_1/1"},
		"exactly":          {Config{Device: "other", Port: 3}, "mlx5_1", "other/3"},
	} {
		c.config.Devices, err = ParseDevices(c.devices)
		require.NoError(t, err)
		nics, err := choose(sysfs, known, names, &c.config)
		require.NoError(t, err, name)
		var got []string
		for _, n := range nics {
			got = append(got, n.String())
		}
		assert.Equal(t, c.want, strings.Join(got, " "), name)
	}
	nics, err := choose(sysfs, nil, names, &Config{Turn: 1}) // sysfs is hidden
	require.NoError(t, err)
	assert.Equal(t, NIC{"mlx5_3", 0}, nics[0])
	only, err := ParseDevices("mlx5_9,mlx5_0:2")
	require.NoError(t, err)
	_, err = choose(sysfs, known, names[2:], &Config{Devices: only})
	require.ErrorIs(t, err, transport.ErrNotSupported)
	require.ErrorContains(t, err, `devices "mlx5_9,mlx5_0:2" are none of: mlx5_1 (1 ports), mlx5_0 (1 ports), soft0 (1 ports)`)
	_, err = choose(sysfs, known, nil, &Config{})
	require.ErrorContains(t, err, "no RDMA device")
}

// TestHere: a process is near to a node if it may run nowhere else.
func TestHere(t *testing.T) {
	node := "devices/system/node/node"
	sysfs := fakeSysfs(t, map[string]string{node + "0/cpulist": "0-3,8-11", node + "1/cpulist": "4-7,12-15", node + "2/cpulist": ""})
	for want, cpus := range map[int][]int{0: {3, 4}, 1: {0, 9}, 2: {12}} {
		assert.Equal(t, Place{NUMANode: want}, placeOf(sysfs, cpus))
	}
	one := fakeSysfs(t, map[string]string{node + "0/cpulist": "0-3"})
	assert.Equal(t, Place{}, placeOf(one, []int{0}))
	assert.Equal(t, Place{}, placeOf(t.TempDir(), []int{0}))
	wrong := fakeSysfs(t, map[string]string{node + "0/cpulist": "0-3", node + "1/cpulist": "4-x"})
	assert.Equal(t, Place{}, placeOf(wrong, []int{0}))
	_ = Here() // of this machine: whatever it is
}
