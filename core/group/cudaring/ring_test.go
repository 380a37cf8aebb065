package cudaring_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/group/cudaring"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

func open(t *testing.T) (*cudatest.Driver, *cuda.Device) {
	drv := cudatest.Emulate(t)
	dev, err := cuda.Open(drv.Library, 0, drv.Code(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return drv, dev
}

// nic is a carrier that takes device memory, or says why not.
type nic struct {
	transport.Transport
	why      error
	memory   []transport.Dmabuf
	host     [][]byte
	contents byte
}

func (n *nic) Name() string     { return "nic" }
func (n *nic) CanDmabuf() error { return n.why }

func (n *nic) RegisterDmabuf(m transport.Dmabuf, _ transport.Access) (transport.Region, error) {
	n.memory = append(n.memory, m)
	fd, err := sys.Duplicate(m.FD)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	mapped, err := sys.Map(fd, int64(m.Off), m.SizeBytes)
	if err != nil {
		return nil, err
	}
	n.contents = mapped.Bytes()[m.SizeBytes-1]
	return nil, mapped.Unmap()
}

func (n *nic) Register(mem []byte, _ transport.Access) (transport.Region, error) {
	n.host = append(n.host, mem)
	return nil, nil
}

// TestInTheDevice: where carrier and device can, a ring is device memory, and
// the carrier is given just that.
func TestInTheDevice(t *testing.T) {
	_, dev := open(t)
	n := &nic{}
	m := cudaring.For(dev, n)
	require.NoError(t, m.Why())
	flush, err := m.Flush()
	require.NoError(t, err)
	require.NoError(t, flush(), "the device does not order what others write")
	r, err := m.Make(8192)
	require.NoError(t, err)
	require.Nil(t, r.Bytes(0, 8192))
	require.EqualValues(t, 8192, r.SizeBytes())
	cudatest.Slice[byte](r.Address(), 8192)[4095] = 9
	_, err = domain.RegisterSegment(n, r, 4096, 0)
	require.NoError(t, err)
	require.Empty(t, n.host)
	require.Len(t, n.memory, 1)
	require.Equal(t, r.Address(), n.memory[0].Addr)
	require.EqualValues(t, 4096, n.memory[0].SizeBytes)
	require.EqualValues(t, 9, n.contents)

	_, err = domain.RegisterSegment(fake.New(fake.Config{Manual: true}).Transport(), r, 4096, 0)
	require.ErrorIs(t, err, transport.ErrNotSupported)
	require.ErrorContains(t, err, "a device's memory over fake")
	r.Retain()
	r.Release()
	r.Release()
	require.NoError(t, r.Close())
	require.Panics(t, r.Retain)
}

// TestInTheHost: where the carrier, the device or the driver cannot, a ring is
// pinned host memory that kernels see, and says why.
func TestInTheHost(t *testing.T) {
	old := errors.New("an old library")
	for why, c := range map[string]struct {
		carrier transport.Transport
		env     string
		fails   string
	}{
		"fake registers no device memory": {carrier: fake.New(fake.Config{Manual: true}).Transport()},
		"an old library":                  {carrier: &nic{why: old}},
		"has none":                        {carrier: &nic{}, env: "EMULATOR_NO_DMABUF"},
		"cuMemGetHandleForAddressRange":   {carrier: &nic{}, fails: "cuMemGetHandleForAddressRange"},
	} {
		t.Run(why, func(t *testing.T) {
			drv, dev := open(t)
			if c.env != "" {
				t.Setenv(c.env, "1")
			}
			if c.fails != "" {
				drv.FailAfter(c.fails, 0, libcuda.ErrNotSupported)
			}
			m := cudaring.For(dev, c.carrier)
			require.ErrorContains(t, m.Why(), why)
			flush, err := m.Flush()
			require.NoError(t, err)
			require.Nil(t, flush)
			r, err := m.Make(8192)
			require.NoError(t, err)
			_, isDevice := r.Dmabuf()
			require.False(t, isDevice)
			n := &nic{}
			_, err = domain.RegisterSegment(n, r, 4096, 0)
			require.NoError(t, err)
			require.Len(t, n.host[0], 4096)
			cudatest.Slice[uint64](r.Address(), 1024)[1] = 5
			require.EqualValues(t, 5, r.Word(8).Load())
			require.EqualValues(t, 5, n.host[0][8])
			r.Prefault(0, 8192)
			r.Release()
			require.NoError(t, r.Close())
		})
	}
}

// TestMakeFails: the error names the call, and nothing is left.
func TestMakeFails(t *testing.T) {
	drv, dev := open(t)
	m := cudaring.For(dev, &nic{})
	require.NoError(t, m.Why())
	for _, call := range []string{"cuMemCreate", "cuMemMap", "cuMemGetHandleForAddressRange"} {
		drv.FailAfter(call, 0, libcuda.ErrOutOfMemory)
		_, err := m.Make(4096)
		require.ErrorIs(t, err, libcuda.ErrOutOfMemory)
		require.ErrorContains(t, err, call)
	}
	_, err := m.Make(0)
	require.ErrorContains(t, err, "a ring of 0 bytes")
}
