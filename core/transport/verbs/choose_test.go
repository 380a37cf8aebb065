package verbs

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
)

// fakeSysfs writes files and links (those whose text begins with "->").
func fakeSysfs(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		if target, link := cutPrefix(text, "->"); link {
			require.NoError(t, os.MkdirAll(filepath.Join(root, target), 0o700))
			require.NoError(t, os.Symlink(filepath.Join(root, target), path))
			continue
		}
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	return root
}

func cutPrefix(text, prefix string) (string, bool) {
	if len(text) >= len(prefix) && text[:len(prefix)] == prefix {
		return text[len(prefix):], true
	}
	return text, false
}

// twoSockets is a machine with two NICs behind switches of node 0, one of them
// down, one on node 1, a GPU beside each of the first and the third, and a
// device made of software.
func twoSockets(t *testing.T) string {
	files := map[string]string{
		"class/infiniband/soft0/ports/1/state":      "4: ACTIVE",
		"class/infiniband/soft0/ports/1/link_layer": "Ethernet",
		"class/infiniband/soft0/ports/1/rate":       "2.5 Gb/sec (1X SDR)",
		"bus/pci/devices/0000:03:00.0":              "->devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:03:00.0",
		"bus/pci/devices/0000:85:00.0":              "->devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:85:00.0",
	}
	nic := func(name, path, node, state, rate string) {
		dir := "class/infiniband/" + name + "/"
		files[dir+"device"] = "->devices/" + path
		files["devices/"+path+"/numa_node"] = node
		files[dir+"ports/1/state"] = state
		files[dir+"ports/1/link_layer"] = "InfiniBand"
		files[dir+"ports/1/rate"] = rate
	}
	nic("mlx5_0", "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:04:00.0", "0", "4: ACTIVE", "400 Gb/sec (4X NDR)")
	nic("mlx5_1", "pci0000:00/0000:00:03.0/0000:05:00.0", "0", "1: DOWN", "400 Gb/sec (4X NDR)")
	nic("mlx5_2", "pci0000:00/0000:00:04.0/0000:06:00.0", "0", "4: ACTIVE", "100 Gb/sec (4X EDR)")
	nic("mlx5_3", "pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:02.0/0000:84:00.0", "1", "4: ACTIVE", "400 Gb/sec (4X NDR)")
	return fakeSysfs(t, files)
}

func TestDevicesIn(t *testing.T) {
	devices, err := devicesIn(twoSockets(t))
	require.NoError(t, err)
	require.Len(t, devices, 5)
	assert.Equal(t, Device{
		Name:     "mlx5_0",
		NUMANode: 0,
		PCIPath:  []string{"pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:02.0", "0000:04:00.0"},
		Ports:    []Port{{Num: 1, Active: true, LinkLayer: "InfiniBand", RateGbps: 400}},
	}, devices[0])
	assert.Equal(t, Device{
		Name:     "soft0",
		NUMANode: -1,
		Ports:    []Port{{Num: 1, Active: true, LinkLayer: "Ethernet", RateGbps: 2.5}},
	}, devices[4])

	none, err := devicesIn(t.TempDir())
	require.NoError(t, err)
	assert.Empty(t, none)
}

func TestNearest(t *testing.T) {
	sysfs := twoSockets(t)
	devices, err := devicesIn(sysfs)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		near Place
		want []string
	}{
		"anywhere":       {Place{}, []string{"mlx5_0", "mlx5_3", "mlx5_2", "soft0", "mlx5_1"}},
		"GPU of node 0":  {Place{PCIAddress: "0000:03:00.0"}, []string{"mlx5_0", "mlx5_2", "mlx5_3", "soft0", "mlx5_1"}},
		"GPU of node 1":  {Place{PCIAddress: "0000:85:00.0"}, []string{"mlx5_3", "mlx5_0", "mlx5_2", "soft0", "mlx5_1"}},
		"node 0":         {Place{NUMANode: 1}, []string{"mlx5_0", "mlx5_2", "mlx5_3", "soft0", "mlx5_1"}},
		"node 1":         {Place{NUMANode: 2}, []string{"mlx5_3", "mlx5_0", "mlx5_2", "soft0", "mlx5_1"}},
		"no such GPU":    {Place{PCIAddress: "0000:99:00.0"}, []string{"mlx5_0", "mlx5_3", "mlx5_2", "soft0", "mlx5_1"}},
		"GPU, then node": {Place{PCIAddress: "0000:85:00.0", NUMANode: 1}, []string{"mlx5_3", "mlx5_0", "mlx5_2", "soft0", "mlx5_1"}},
	} {
		var got []string
		for _, d := range nearestIn(sysfs, devices, c.near) {
			got = append(got, d.Name)
		}
		assert.Equal(t, c.want, got, name)
	}
}

func TestChooseGID(t *testing.T) {
	entry := func(index int, kind, addr string) gidEntry {
		return gidEntry{index, netip.MustParseAddr(addr), kind}
	}
	linkV1, linkV2 := entry(0, kindV1, "fe80::1"), entry(1, kindV2, "fe80::1")
	fourV1, fourV2 := entry(2, kindV1, "::ffff:10.0.0.1"), entry(3, kindV2, "::ffff:10.0.0.1")
	sixV2, anotherV2 := entry(4, kindV2, "fd00::1"), entry(5, kindV2, "::ffff:10.0.9.1")
	for _, c := range []struct {
		entries []gidEntry
		want    int
	}{
		{[]gidEntry{linkV1, linkV2, fourV1, fourV2, sixV2, anotherV2}, 3},
		{[]gidEntry{linkV1, linkV2, fourV1, sixV2}, 4},
		{[]gidEntry{linkV1, linkV2, fourV1}, 1},
		{[]gidEntry{linkV1, fourV1}, 0},
	} {
		got, err := chooseGID(GIDChoice{}, c.entries)
		require.NoError(t, err)
		assert.Equal(t, c.want, got)
	}
	_, err := chooseGID(GIDChoice{}, nil)
	require.ErrorContains(t, err, "no RoCE address among 0 addresses")
	_, err = chooseGID(GIDChoice{}, []gidEntry{entry(7, "", "fd00::1")})
	require.ErrorContains(t, err, "7: fd00::1 ()")
}

func TestReadGIDs(t *testing.T) {
	port := "class/infiniband/a/ports/2/"
	sysfs := fakeSysfs(t, map[string]string{
		port + "gids/0":             "fe80:0000:0000:0000:0000:0000:0000:0001",
		port + "gid_attrs/types/0":  kindV1,
		port + "gids/10":            "0000:0000:0000:0000:0000:ffff:0a00:0001",
		port + "gid_attrs/types/10": kindV2,
		port + "gids/2":             "0000:0000:0000:0000:0000:0000:0000:0000",
		port + "gid_attrs/types/2":  kindV1,
		port + "gids/3":             "fe80:0000:0000:0000:0000:0000:0000:0003", // no type
	})
	want := []gidEntry{
		{0, netip.MustParseAddr("fe80::1"), kindV1},
		{10, netip.MustParseAddr("::ffff:10.0.0.1"), kindV2},
	}
	assert.Equal(t, want, readGIDs(sysfs, "a", 2))
	assert.Empty(t, readGIDs(sysfs, "a", 1))

	table := []libibverbs.GIDEntry{
		{GID: netip.MustParseAddr("fe80::1").As16(), Index: 0, Port: 2, Type: libibverbs.GIDTypeRoCEv1},
		{GID: netip.MustParseAddr("fe80::2").As16(), Index: 1, Port: 1, Type: libibverbs.GIDTypeRoCEv2},
		{GID: netip.MustParseAddr("::ffff:10.0.0.1").As16(), Index: 10, Port: 2, Type: libibverbs.GIDTypeRoCEv2},
	}
	assert.Equal(t, want, gidsOf(table, 2))
}

func TestAddress(t *testing.T) {
	a := address{
		linkLayer: libibverbs.LinkInfiniBand, mtu: 5, readDepth: 16, lid: 0x1234, needsRoute: true, hasDC: true, member: 3,
		qpNumber: 0xabcdef, psn: 0x123456, gid: [16]byte{0: 1, 15: 2}, target: 0x654321, targetKey: 0x0102030405060708,
	}
	b := a.encode()
	// By hand, from the table in the comment.
	want := append([]byte{1, 1, 5, 16, 0x34, 0x12, 3, 3, 0xef, 0xcd, 0xab, 0, 0x56, 0x34, 0x12, 0}, a.gid[:]...)
	want = append(want, 0x21, 0x43, 0x65, 0, 8, 7, 6, 5, 4, 3, 2, 1)
	require.Equal(t, want, b)
	without := a
	without.hasDC, without.target, without.targetKey = false, 0, 0
	want[6] = 1
	require.Equal(t, want[:32], without.encode())
	back, err := decodeAddress(b)
	require.NoError(t, err)
	assert.Equal(t, a, back)

	for text, change := range map[string]func([]byte) []byte{
		"31 bytes, want 32": func(b []byte) []byte { return b[:31] },
		"33 bytes, want 32": func(b []byte) []byte { b[6] = 1; return b[:33] },
		"44 bytes, want 32": func(b []byte) []byte { b[6] = 1; return b },
		"32 bytes, want 44": func(b []byte) []byte { return b[:32] },
		"45 bytes, want 44": func(b []byte) []byte { return append(b, 0) },
		"target 0x1654321":  func(b []byte) []byte { b[35] = 1; return b },
		"version 2":         func(b []byte) []byte { b[0] = 2; return b },
		"MTU code 0":        func(b []byte) []byte { b[2] = 0; return b },
		"MTU code 6":        func(b []byte) []byte { b[2] = 6; return b },
		"flags 4":           func(b []byte) []byte { b[6] = 4; return b[:32] },
		"flags 3 16":        func(b []byte) []byte { b[7] = 16; return b },
		"more than 24 bits": func(b []byte) []byte { b[11] = 1; return b },
		"packet 0x1123456":  func(b []byte) []byte { b[15] = 1; return b },
	} {
		_, err := decodeAddress(change(a.encode()))
		require.ErrorIs(t, err, errAddress)
		assert.ErrorContains(t, err, text)
	}
}

func FuzzDecodeAddress(f *testing.F) {
	f.Add(address{mtu: 3}.encode())
	f.Add(address{mtu: 3, hasDC: true, target: 7, targetKey: 1 << 63}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddress(b)
		if err != nil {
			return
		}
		assert.Equal(t, b, a.encode())
	})
}
