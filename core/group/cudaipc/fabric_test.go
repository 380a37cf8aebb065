package cudaipc

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// fromElsewhere maps a pair's memory as another process would: nothing is borrowed.
func (p *pair) fromElsewhere(w Wait) (*View, error) {
	c := p.offer.memDesc
	return byExport(&c, p.dev, memBytes, w)
}

// checkSame: a view is the pair's memory at another address.
func (p *pair) checkSame(t *testing.T, v *View, path string) {
	t.Helper()
	require.Equal(t, path, v.Path())
	require.NotEqual(t, p.mem.Address(), v.Address())
	cudatest.Slice[byte](p.mem.Address(), memBytes)[memBytes-1]++
	require.Equal(t, cudatest.Slice[byte](p.mem.Address(), memBytes)[memBytes-1], cudatest.Slice[byte](v.Address(), memBytes)[memBytes-1])
}

// TestByEitherHandle: the descriptor comes first; where it is not handed out, or the
// driver does not take it, the fabric handle does.
func TestByEitherHandle(t *testing.T) {
	t.Setenv("EMULATOR_FABRIC", "1")
	p := newPair(t)
	require.Equal(t, byFD|byFabric, p.offer.memDesc.ways)
	h, _ := p.mem.Fabric()
	require.EqualValues(t, h, p.offer.memDesc.handle)

	v, err := p.fromElsewhere(soon())
	require.NoError(t, err)
	p.checkSame(t, v, "fd")
	require.NoError(t, v.Close())

	p.emu.FailAfter("cuMemImportFromShareableHandle", 0, libcuda.ErrNotSupported)
	v, err = p.fromElsewhere(soon())
	require.NoError(t, err)
	p.checkSame(t, v, "fabric")
	require.NoError(t, v.Close())

	require.NoError(t, p.offer.Close()) // as in another network namespace: no socket listens
	v, err = p.fromElsewhere(soon())
	require.NoError(t, err)
	p.checkSame(t, v, "fabric")
	require.Empty(t, p.offer.Holders())
	require.NoError(t, p.mem.Close())
	_, err = p.fromElsewhere(soon())
	require.ErrorIs(t, err, sys.ErrNoListener, "both ways are named")
	require.ErrorIs(t, err, libcuda.ErrInvalidValue)
	require.ErrorContains(t, err, "cuMemImportFromShareableHandle")
	cudatest.Slice[byte](v.Address(), memBytes)[0] = 1 // the owner's is gone, this one's is not
	require.NoError(t, v.Close())
	require.NoError(t, v.Close())
}

// TestWhatAnswersIsBelieved: no other way is tried where one has ended for good.
func TestWhatAnswersIsBelieved(t *testing.T) {
	t.Setenv("EMULATOR_FABRIC", "1")
	p := newPair(t)
	imports := func() int { return p.emu.Calls("cuMemImportFromShareableHandle") }
	stop := make(chan struct{})
	close(stop)
	before := imports()
	c := p.offer.memDesc
	c.socket = freshName()
	mute, err := sys.ListenAbstract(c.socket, 1)
	require.NoError(t, err)
	defer sys.CloseAll(mute)
	_, err = byExport(&c, p.dev, memBytes, Wait{Until: time.Now().Add(time.Hour), Stop: stop})
	require.ErrorIs(t, err, ErrStopped)
	require.Equal(t, before, imports())
	c = p.offer.memDesc
	_, err = byExport(&c, p.dev, 64*memBytes, soon())
	require.ErrorIs(t, err, transport.ErrMismatch)
	require.Equal(t, before+1, imports(), "by descriptor")
	v, err := byFabricHandle(&c, p.dev, 64*memBytes)
	require.Nil(t, v)
	require.ErrorIs(t, err, transport.ErrMismatch)
	require.ErrorContains(t, err, "its memory descriptor says 2097152 bytes, the driver maps no 134217728 of them")
}

// TestByFabricAlone: no process is asked, and the owner has no listener.
func TestByFabricAlone(t *testing.T) {
	t.Setenv("EMULATOR_FABRIC", "1")
	p := newPairBy(t, (*cuda.Device).ShareByFabric)
	require.Equal(t, byFabric, p.offer.memDesc.ways)
	require.Empty(t, p.offer.memDesc.socket)
	require.Nil(t, p.offer.listener)
	parsed, err := parseMemDesc(p.offer.memDesc.marshal(), 0, 2)
	require.NoError(t, err)
	require.Equal(t, p.offer.memDesc, *parsed)
	v, err := p.fromElsewhere(Wait{})
	require.NoError(t, err)
	p.checkSame(t, v, "fabric")
	require.NoError(t, v.Close())
	v, err = p.mapIt()
	require.NoError(t, err)
	require.Equal(t, "process", v.Path(), "addresses are as good as ever")
	require.NoError(t, v.Close())
	t.Setenv("EMULATOR_IMEX", "2")
	_, err = p.fromElsewhere(Wait{})
	require.ErrorIs(t, err, libcuda.ErrNotPermitted)
	require.ErrorContains(t, err, "cuMemImportFromShareableHandle: CUDA_ERROR_NOT_PERMITTED (800)")
}

// TestNoFabricNoWay: a rank without is reached as it always was, and says nothing of
// such handles in its memory descriptor.
func TestNoFabricNoWay(t *testing.T) {
	for _, c := range []struct {
		fabric   string
		leaveOut func(*cuda.Device)
		ways     ways
	}{
		{"0", (*cuda.Device).ShareByFabric, byIPC},
		{"refused", (*cuda.Device).ShareByFabric, byIPC},
		{"1", (*cuda.Device).ShareByIPC, byIPC},
		{"0", func(*cuda.Device) {}, byFD},
		{"refused", func(*cuda.Device) {}, byFD},
	} {
		t.Run(c.fabric, func(t *testing.T) {
			t.Setenv("EMULATOR_FABRIC", c.fabric)
			p := newPairBy(t, c.leaveOut)
			require.Equal(t, c.ways, p.offer.memDesc.ways)
			require.Equal(t, c.ways == byIPC, p.offer.memDesc.handle != [64]byte{})
			require.NotEmpty(t, p.offer.memDesc.socket)
		})
	}
}

// TestEveryFailureOnTheWay has every call fail between memory and its mapping by
// either handle. What only one of two ways needs may fail unheard.
func TestEveryFailureOnTheWay(t *testing.T) {
	emu := cudatest.Emulate(t)
	t.Setenv("EMULATOR_FABRIC", "1")
	either := []string{
		"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
		"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
		"cuThreadExchangeStreamCaptureMode", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease",
	}
	for name, c := range map[string]struct {
		leaveOut func(*cuda.Device)
		unheard  []string
	}{
		"either": {func(*cuda.Device) {}, either},
		"fabric": {(*cuda.Device).ShareByFabric, []string{"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle"}},
	} {
		t.Run(name, func(t *testing.T) {
			failed := cudatest.Sweep{Short: testing.Short(), Life: func() error { return wayThrough(emu, c.leaveOut) }, Times: 20, Unheard: c.unheard}.Run(t, emu)
			require.Subset(t, failed, either[:7])
		})
	}
}

// wayThrough offers memory and maps it, up to the first error, and frees everything.
func wayThrough(emu *cudatest.Driver, leaveOut func(*cuda.Device)) (err error) {
	doms := inproc.New(2, 4096)
	dev, err := cuda.Open(emu.Library, 0, []byte("kernels\x00"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, again(dev.Close)) }()
	leaveOut(dev)
	mem, err := dev.AllocShared(memBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, again(mem.Close)) }()
	offer, err := NewOffer(doms[0], dev, mem)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, offer.Close()) }()
	p := &pair{dev: dev, mem: mem, offer: offer}
	if offer.memDesc.ways == byIPC { // the fabric handle was refused: no view opens that in this process
		return nil
	}
	v, err := p.fromElsewhere(soon())
	if err != nil {
		return err
	}
	return again(v.Close)
}

// again calls what may be called again after an error once more.
func again(f func() error) error {
	err := f()
	if err != nil {
		err = errors.Join(err, f())
	}
	return err
}
