package cuda_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/wire"
)

// open meets the others for the first time.
func (c *child) open(d *device.Device, cfg shm.Config) (metas [][]byte, dom domain.Domain) {
	if c.Hosts == "" {
		l, err := shm.Open(cfg)
		require.NoError(c.t, err)
		metas = c.meet(l)
		dom, err = l.Connect(metas, testTimeout)
		require.NoError(c.t, err)
		return metas, dom
	}
	keys, err := wire.NewKeyring(func() ([]byte, error) { return []byte(os.Getenv(keyVariable)), nil })
	require.NoError(c.t, err)
	l, err := multihost.Open(hostsConfig(d, keys, cfg, c.Hosts, true))
	require.NoError(c.t, err)
	metas = c.meet(l)
	dom, err = l.Connect(metas, testTimeout)
	require.NoError(c.t, err)
	return metas, dom
}

// reopen meets the others again.
func (c *child) reopen(params []byte) (metas [][]byte, commit func() error) {
	if c.Hosts == "" {
		l, err := shm.Relist(c.dom, params)
		require.NoError(c.t, err)
		metas = c.meet(l)
		change, err := l.ReconnectWith(metas, false, testTimeout)
		require.NoError(c.t, err)
		return metas, change.Commit
	}
	l, err := multihost.Relist(c.dom.(*multihost.Domain), params)
	require.NoError(c.t, err)
	metas = c.meet(l)
	change, err := l.Reconnect(metas, testTimeout)
	require.NoError(c.t, err)
	return metas, change.Commit
}

func (c *child) paramsOf(meta []byte) []byte {
	if c.Hosts == "" {
		info, err := shm.ParseMetadata(meta)
		require.NoError(c.t, err)
		return info.Params
	}
	info, err := multihost.ParseMetadata(meta)
	require.NoError(c.t, err)
	return info.Shm.Params
}

// keyVariable has the group's keys for its processes.
const (
	keyVariable = "MOEWIRE_TEST_GPU_KEYS"
	testKey     = "1 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde0"
)

// overHosts is what a test of processes on several hosts needs.
func overHosts(t *testing.T, spec rankSpec, hosts string) rankSpec {
	t.Setenv(keyVariable, testKey)
	spec.Hosts, spec.Ranks, spec.Seed = hosts, len(hosts), testenv.Seed(t)
	return spec
}

// TestHostsProcesses: ranks that are processes on several hosts get what plain
// loops say.
func TestHostsProcesses(t *testing.T) {
	g := startProcesses(t, overHosts(t, rankSpec{Play: "rounds"}, "aab"))
	g.finish(0, 1, 2)
}

// TestHostsKilled kills a rank for which the others are remote, in the middle: they
// go on, and a process that joins takes its place.
func TestHostsKilled(t *testing.T) {
	spec := overHosts(t, rankSpec{Play: "killed"}, "aba")
	g := startProcesses(t, spec)
	g.replaceKilled(t, spec)
}

// TestHostsFrozen stops the process of a remote rank: ranks that wait for it go on at their
// deadline, by the same failure detector as on one host, and take it back by an update.
func TestHostsFrozen(t *testing.T) {
	g := startProcesses(t, overHosts(t, rankSpec{Play: "frozen"}, "ab"))
	g.freezeOne(t)
}
