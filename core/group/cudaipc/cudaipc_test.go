package cudaipc

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// pair is two ranks of this process, of which rank 0 offers memory.
type pair struct {
	emu   *cudatest.Driver
	doms  []domain.Domain
	dev   *cuda.Device
	mem   *cuda.Memory
	offer *Offer
}

const memBytes = 2 << 20

func newPair(t *testing.T) *pair { return newPairBy(t, func(*cuda.Device) {}) }

// newPairBy leaves out ways of rank 0's device.
func newPairBy(t *testing.T, leaveOut func(*cuda.Device)) *pair {
	emu := cudatest.Emulate(t)
	p := &pair{emu: emu, doms: inproc.New(2, 4096)}
	var err error
	p.dev, err = cuda.Open(emu.Library, 0, emu.Code(t))
	require.NoError(t, err)
	leaveOut(p.dev)
	p.mem, err = p.dev.AllocShared(memBytes)
	require.NoError(t, err)
	p.offer, err = NewOffer(p.doms[0], p.dev, p.mem)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.offer.Close())
		require.NoError(t, p.offer.Close())
		require.NoError(t, p.mem.Close())
		require.NoError(t, p.dev.Close())
	})
	return p
}

func soon() Wait { return Wait{Until: time.Now().Add(time.Minute)} }

func (p *pair) mapIt() (*View, error) {
	return Map(p.doms[1], p.dev, 0, memBytes, soon())
}

// TestMemoryOutlivesItsOwner: within a process, too, memory stays until the last rank
// that has it releases it.
func TestMemoryOutlivesItsOwner(t *testing.T) {
	p := newPair(t)
	v, err := p.mapIt()
	require.NoError(t, err)
	require.Equal(t, "process", v.Path())
	require.Equal(t, p.mem.Address(), v.Address())
	at := v.Address()
	require.NoError(t, p.offer.Close())
	require.NoError(t, p.mem.Close())
	cudatest.Slice[byte](at, memBytes)[memBytes-1] = 1
	_, err = p.mapIt()
	require.ErrorIs(t, err, domain.ErrExited)
	require.NoError(t, v.Close())
	require.NoError(t, v.Close())
}

// TestByDescriptor: the same memory at another address.
func TestByDescriptor(t *testing.T) {
	p := newPair(t)
	c := p.offer.memDesc
	v, err := byDescriptor(&c, p.dev, memBytes, soon())
	require.NoError(t, err)
	require.NotEqual(t, p.mem.Address(), v.Address())
	cudatest.Slice[byte](p.mem.Address(), memBytes)[7] = 42
	require.EqualValues(t, 42, cudatest.Slice[byte](v.Address(), memBytes)[7])
	require.NoError(t, v.Close())
	_, err = byDescriptor(&c, p.dev, 64*memBytes, soon())
	require.ErrorIs(t, err, transport.ErrMismatch, "there is less")
}

// TestListener: a client that does not know the nonce gets nothing, and one that says
// nothing disturbs no other.
func TestListener(t *testing.T) {
	p := newPair(t)
	for range maxPending + 8 {
		silent, err := knock(p.offer.memDesc.socket, soon())
		require.NoError(t, err)
		defer sys.CloseAll(silent)
	}
	wrong := p.offer.memDesc
	wrong.nonce[3]++
	_, _, err := visit(&wrong, soon())
	require.Error(t, err)
	conn, fd, err := visit(&p.offer.memDesc, soon())
	require.NoError(t, err)
	sys.CloseAll(conn, fd)
	require.NoError(t, p.offer.Close())
	_, _, err = visit(&p.offer.memDesc, soon())
	require.ErrorIs(t, err, sys.ErrNoListener)
}

// TestBadMemDescs: each is refused for what is wrong with it, by its rank.
func TestBadMemDescs(t *testing.T) {
	p := newPair(t)
	good := p.offer.memDesc.marshal()
	require.Len(t, good, memDescBytes)
	sealed := func(change func(b []byte)) []byte {
		b := append([]byte(nil), good...)
		change(b)
		sum := sha256.Sum256(b[:memDescBytes-8])
		copy(b[memDescBytes-8:], sum[:8])
		return b
	}
	le := binary.LittleEndian
	for text, b := range map[string][]byte{
		"239 bytes":                good[:memDescBytes-1],
		"does not begin":           sealed(func(b []byte) { b[0] = 'x' }),
		"format version 2":         sealed(func(b []byte) { b[4] = 2 }),
		"ways 0":                   sealed(func(b []byte) { b[6] = 0 }),
		"ways 3":                   sealed(func(b []byte) { b[6] = 3 }),
		"ways 6":                   sealed(func(b []byte) { b[6] = 6 }),
		"ways 7":                   sealed(func(b []byte) { b[6] = 7 }),
		"ways 8":                   sealed(func(b []byte) { b[6] = 8 }),
		"ways 257":                 sealed(func(b []byte) { b[7] = 1 }),
		"of rank 1 of 2":           sealed(func(b []byte) { b[8] = 1 }),
		"of rank 0 of 3":           sealed(func(b []byte) { b[12] = 3 }),
		"name of 95 bytes":         sealed(func(b []byte) { b[136] = 95 }),
		"name of 0 bytes":          sealed(func(b []byte) { b[136] = 0 }),
		"name of 45 bytes":         sealed(func(b []byte) { b[6] = byte(byFabric) }),
		"checksum":                 append(append([]byte(nil), good[:memDescBytes-1]...), good[memDescBytes-1]+1),
		"configuration needs 2097": sealed(func(b []byte) { le.PutUint64(b[16:], memBytes-1) }),
	} {
		copy(p.offer.slab.Bytes(memDescOff, memDescBytes), b)
		p.offer.slab.Word(0).Store(uint64(len(b)))
		_, err := p.mapIt()
		require.ErrorContains(t, err, "memory of rank 0: ")
		require.ErrorContains(t, err, text)
	}
	boast := sealed(func(b []byte) { le.PutUint64(b[16:], 1<<40) })
	copy(p.offer.slab.Bytes(memDescOff, memDescBytes), boast)
	p.offer.slab.Word(0).Store(memDescBytes)
	_, err := Map(p.doms[1], p.dev, 0, 1<<39, soon())
	require.ErrorIs(t, err, transport.ErrMismatch)
	require.ErrorContains(t, err, "its memory descriptor says 1099511627776 bytes, it has 2097152")
	p.offer.slab.Word(0).Store(1 << 60)
	_, err = p.mapIt()
	require.ErrorIs(t, err, domain.ErrMetadata)
}

// TestNobodyOffers: a wait ends at its deadline, and when the process does.
func TestNobodyOffers(t *testing.T) {
	p := newPair(t)
	_, err := Map(p.doms[0], p.dev, 1, memBytes, Wait{Until: time.Now()})
	require.ErrorContains(t, err, "memory of rank 1: it was not offered before the deadline")
	inproc.Kill(p.doms[0], 1)
	_, err = Map(p.doms[0], p.dev, 1, memBytes, soon())
	require.ErrorIs(t, err, domain.ErrExited)
}

func FuzzMemDesc(f *testing.F) {
	for _, w := range []ways{byFD, byIPC, byFabric, byFD | byFabric} {
		c := memDesc{ways: w, numRanks: 2, numBytes: 1}
		if w != byFabric {
			c.socket = "s"
		}
		f.Add(c.marshal())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseMemDesc(b, 0, 2)
		if err != nil {
			require.ErrorIs(t, err, domain.ErrMetadata)
			return
		}
		require.Equal(t, b[:137], c.marshal()[:137])
		require.Contains(t, []ways{byFD, byIPC, byFabric, byFD | byFabric}, c.ways)
		require.Equal(t, c.ways == byFabric, c.socket == "")
	})
}
