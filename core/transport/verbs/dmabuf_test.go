package verbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// deviceMemory is 8 KiB at an address that is not this process's.
func deviceMemory(fd int) transport.Dmabuf {
	return transport.Dmabuf{FD: fd, Off: 0x3000, SizeBytes: 8192, Addr: 0x7f00_0000_1000}
}

// TestDmabuf: what is registered is what was asked for; requests name it by
// its own addresses; nothing here touches its bytes.
func TestDmabuf(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{})
	require.NoError(t, tr.CanDmabuf())
	r, err := tr.RegisterDmabuf(deviceMemory(9), transport.AccessWrite)
	require.NoError(t, err)
	require.Equal(t, []fakeDmabuf{{0x3000, 8192, 0x7f00_0000_1000, libibverbs.AccessLocalWrite | libibverbs.AccessRemoteWrite}}, f.dmabufs)
	require.Nil(t, r.Bytes())
	require.EqualValues(t, 0x7f00_0000_1000, r.Remote().Addr)
	require.EqualValues(t, 8192, r.Remote().SizeBytes)
	require.ErrorIs(t, tr.Close(), transport.ErrBusy)

	a, _ := connected(t, tr, 4)
	part := []transport.Piece{{Region: r, Off: 4096, Bytes: 100}}
	post(t, a, transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: part, Remote: r.Remote()})
	qp := a.(*endpoint).qp
	sge := f.pending[uintptr(qp)][0].sges
	require.Len(t, sge, 1)
	require.EqualValues(t, 0x7f00_0000_2000, sge[0].Addr)
	require.ErrorIs(t, r.Close(), transport.ErrBusy)
	f.finish(qp, libibverbs.WCSuccess)
	require.EqualValues(t, 100, await(t, tr, 1)[1].NumBytes)
	for text, bad := range map[string]transport.SendRequest{
		"cannot be inline":                    {Op: transport.OpSend, Inline: true, Local: []transport.Piece{{Region: r, Bytes: 8}}},
		"8000 bytes at 4096 of a region of 8": {Op: transport.OpSend, Local: []transport.Piece{{Region: r, Off: 4096, Bytes: 8000}}},
	} {
		_, err = a.PostSend([]transport.SendRequest{bad})
		require.ErrorContains(t, err, text)
	}
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
}

// TestDmabufDetection: what cannot be says so before anything is exported, and
// why.
func TestDmabufDetection(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{})
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT, syscall.ENOSYS} {
		f.failures["reg_dmabuf_mr"] = repeated(errno, 2)
		err := tr.CanDmabuf()
		require.ErrorIs(t, err, transport.ErrNotSupported)
		require.ErrorIs(t, err, errno)
		_, err = tr.RegisterDmabuf(deviceMemory(9), both)
		require.ErrorIs(t, err, transport.ErrNotSupported)
		require.ErrorContains(t, err, "dma-buf on fake0")
	}
	for errno, want := range map[syscall.Errno]error{syscall.ENOMEM: transport.ErrNoResource, syscall.EINVAL: syscall.EINVAL, syscall.EBADF: syscall.EBADF} {
		f.failures["reg_dmabuf_mr"] = []syscall.Errno{errno}
		_, err := tr.RegisterDmabuf(deviceMemory(9), both)
		require.ErrorIs(t, err, want)
		require.False(t, errors.Is(err, transport.ErrNotSupported))
	}
	require.Empty(t, f.dmabufs)
}

func TestDmabufOfAnOldLibrary(t *testing.T) {
	f := newFake(t)
	var err error
	f.lib, err = libibverbs.New(oldLibrary())
	require.NoError(t, err)
	tr := f.open(Config{})
	for _, err := range []error{tr.CanDmabuf(), func() error { _, err := tr.RegisterDmabuf(deviceMemory(9), both); return err }()} {
		require.ErrorIs(t, err, transport.ErrNotSupported)
		require.ErrorContains(t, err, "is older than ibv_reg_dmabuf_mr")
	}
}

func TestDmabufRefuses(t *testing.T) {
	f := newFake(t)
	tr := f.open(Config{MaxRegionBytes: 1 << 20})
	for text, change := range map[string]func(m *transport.Dmabuf){
		"FD is -1, must be a descriptor":            func(m *transport.Dmabuf) { m.FD = -1 },
		"SizeBytes is 0, must be positive":          func(m *transport.Dmabuf) { m.SizeBytes = 0 },
		"Off is 0x3001 and Addr 0x7f0000001000":     func(m *transport.Dmabuf) { m.Off++ },
		"more than 64 bits address":                 func(m *transport.Dmabuf) { m.Addr = ^uint64(0xfff) },
		"at most 1048576 in one region":             func(m *transport.Dmabuf) { m.SizeBytes = 1<<20 + 1 },
		"access is 0x8, must be of AccessWrite and": nil,
	} {
		m, access := deviceMemory(9), transport.Access(8)
		if change != nil {
			change(&m)
			access = both
		}
		_, err := tr.RegisterDmabuf(m, access)
		require.ErrorContains(t, err, text)
	}
	require.Empty(t, f.dmabufs)
}

// TestDmabufOnSeveralPorts: a port that opens later registers it, too, though
// the caller has closed its descriptor.
func TestDmabufOnSeveralPorts(t *testing.T) {
	f := newFakes(t, 2)
	before := sys.Stats()
	g := f.group(Config{})
	require.NoError(t, g.CanDmabuf())
	event, err := sys.NewEvent()
	require.NoError(t, err)
	r, err := g.RegisterDmabuf(deviceMemory(event.Raw()), both)
	require.NoError(t, err)
	require.NoError(t, event.Close())
	f.raiseOn(0, portDown)
	groupEvents(g)
	e := groupEndpoint(t, g)
	require.Len(t, f.dmabufs, 2)
	require.Equal(t, f.dmabufs[0], f.dmabufs[1])
	require.EqualValues(t, 1, transport.RemoteFor(r, e).Key>>32)
	require.NoError(t, r.Close())
	_, err = g.RegisterDmabuf(deviceMemory(1<<20), both)
	require.ErrorContains(t, err, "FD is 1048576")
	f.failures["reg_dmabuf_mr"] = []syscall.Errno{0, syscall.ENOMEM}
	_, err = g.RegisterDmabuf(deviceMemory(0), both)
	require.ErrorIs(t, err, transport.ErrNoResource)
	closeOnGroup(t, g, e)
	require.NoError(t, g.Close())
	require.Equal(t, before, sys.Stats())
}
