package server_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
)

// newLocal starts a server of maps that has an arena, with a client.
func newLocal(t testing.TB, change ...func(*server.Config)) (*server.Server, *raw) {
	t.Helper()
	m, err := medium.NewMemory(arenaBytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	srv, _ := serve(t, append(change, func(c *server.Config) { c.Arena = m })...)
	return srv, open(t, srv)
}

// engineOf is the engine of a server that newLocal starts.
func engineOf(e **servertest.Engine) func(*server.Config) {
	return func(c *server.Config) { *e = c.Store.(*servertest.Engine) }
}

// offering begins another session, over the socket that comes with the arena. taken: the server takes its bounce buffer.
func (r *raw) offering(b *local.Bounce) (other *raw, taken bool) {
	r.t.Helper()
	i := r.invite()
	i.Bounce = b
	require.Eventually(r.t, func() bool { // it may not know yet that what it gave before has come
		status, _ := r.share(i.Name)
		return status == message.OK
	}, 20*time.Second, time.Millisecond)
	fd, socket, err := i.Await(time.Now().Add(20 * time.Second))
	require.NoError(r.t, err)
	require.NoError(r.t, errors.Join(fd.Close(), i.Close()))
	nc, err := local.Conn(socket)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = nc.Close() })
	other, err = greet(r.t, nc)
	require.NoError(r.t, err)
	other.enter()
	return other, i.Taken
}

// bouncing begins one that has a bounce buffer, and gives all of that.
func (r *raw) bouncing() (other *raw, memory []byte) {
	r.t.Helper()
	b, err := local.NewBounce()
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, b.Close()) })
	_, memory, ok := b.Take(message.MaxBounceBytes)
	require.True(r.t, ok)
	other, taken := r.offering(b)
	require.True(r.t, taken)
	return other, memory
}

// bounced is a put of a block at an offset of the bounce buffer, which may be there or not.
func (r *raw) bounced(key string, block []byte, offset uint64) (message.Request, []byte) {
	said, _ := r.put(key, block)
	said.Flags, said.Offset = message.FlagPlace, offset
	return said, []byte(key)
}

// What lies in the bounce buffer is what is stored, from any place and of any size; nothing else comes over the connection.
func TestBouncedPuts(t *testing.T) {
	srv, first := newLocal(t)
	r, memory := first.bouncing()
	for n, size := range []int{0, 1, 100, 16<<10 - 1, 16 << 10, 64<<10 + 3, 1 << 20, message.MaxBounceBytes} {
		key, block := fmt.Sprint("key ", n), noise(size)
		for _, offset := range []int{0, 64, 12345, len(memory) - size} {
			if offset+size > len(memory) {
				continue
			}
			copy(memory[offset:], block)
			said, payload := r.bounced(key, block, uint64(offset))
			status, _ := r.do(message.Put, said, payload)
			require.Equal(t, message.OK, status, "%d at %d", size, offset)
			clear(memory[offset : offset+size])
			got := first.block(key)
			require.Equal(t, block, got)
			status, _ = r.do(message.Delete, message.Request{NumKeys: 1}, table(key))
			require.Equal(t, message.OK, status)
		}
	}
	require.Zero(t, srv.Counters().BadPuts.Load())
}

// block gets a block.
func (r *raw) block(key string) (got []byte) {
	r.t.Helper()
	r.say(message.Get, message.Request{NumKeys: 1}, table(key))
	for last := false; !last; {
		head, b := r.readReply()
		require.False(r.t, head.Refused)
		var p message.Part
		require.NoError(r.t, p.Decode(head.Extra, 1))
		got, last = append(got, b[message.EntryBytes:]...), p.Last
	}
	if got == nil {
		got = []byte{}
	}
	return got
}

// A block that is not wholly in the bounce buffer, or of a client that has none, is malformed; one with other bytes is
// refused and leaves nothing. The connection stays.
func TestBouncedPutsOfAHostileClient(t *testing.T) {
	var engine *servertest.Engine
	srv, first := newLocal(t, engineOf(&engine))
	r, memory := first.bouncing()
	block := noise(1000)
	copy(memory, block)
	said, payload := first.bounced("key", block, 0)
	status, _ := first.do(message.Put, said, payload)
	require.Equal(t, message.Malformed, status, "the bounce buffer is another connection's")
	for _, offset := range []uint64{message.MaxBounceBytes - 999, message.MaxBounceBytes, 1 << 40, 1 << 63, 1<<64 - 1, 1<<64 - 1000} {
		said, payload := r.bounced("key", block, offset)
		status, _ := r.do(message.Put, said, payload)
		require.Equal(t, message.Malformed, status, offset)
	}
	said, payload = r.bounced("key", block, 0)
	status, _ = r.do(message.Put, said, append(payload, block...))
	require.Equal(t, message.Malformed, status, "the block comes twice")
	said, payload = r.bounced("key", block, 1)
	status, _ = r.do(message.Put, said, payload)
	require.Equal(t, message.BadTag, status)
	require.EqualValues(t, 1, srv.Counters().BadPuts.Load())
	require.Zero(t, r.exists("key"))
	stop := sys.FailCall("madvise", syscall.ENOMEM)
	said, payload = r.bounced("key", block, 5<<20)
	status, text := r.do(message.Put, said, payload)
	stop()
	require.Equal(t, message.NotCopied, status)
	require.Contains(t, string(text), "bounce buffer")
	require.Zero(t, r.exists("key"))
	said, payload = r.bounced("key", block, 0)
	status, _ = r.do(message.Put, said, payload)
	require.Equal(t, message.OK, status)
	quiet(t, engine)
}

// memoryOf is memory that its owner can take away, unless it is sealed.
func memoryOf(t *testing.T, bytes int64, sealed bool) *sys.FD {
	t.Helper()
	fd, err := sys.NewMemfd("test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fd.Close()) })
	require.NoError(t, sys.Grow(fd, bytes))
	if sealed {
		require.NoError(t, sys.SealForReaders(fd))
	}
	return fd
}

// given does what a client does that has any bounce buffer. It returns what the server says with the arena, and another
// session over the socket that comes with it.
func (r *raw) given(t *testing.T, bounce *sys.FD) (said byte, other *raw) {
	name := [16]byte{6}
	accept := impostor(t, name)
	status, _ := r.share(name)
	require.Equal(t, message.OK, status)
	where, err := local.Here()
	require.NoError(t, err)
	proof := message.ShareProof(r.session.Export(message.ShareSecret), message.ProofClient, name, where)
	conn := accept()
	require.NoError(t, sys.Send(conn, proof[:], bounce))
	for {
		_, err := sys.WaitReadable([]*sys.FD{conn}, time.Now().Add(20*time.Second))
		require.NoError(t, err)
		var b [message.ProofBytes]byte
		n, fds, err := sys.Receive(conn, b[:], 2)
		require.NoError(t, err)
		if len(fds) == 0 { // the server's proof
			continue
		}
		require.Equal(t, 1, n)
		require.NoError(t, fds[0].Close())
		nc, err := local.Conn(fds[1])
		require.NoError(t, err)
		t.Cleanup(func() { _ = nc.Close() })
		other, err = greet(t, nc)
		require.NoError(t, err)
		other.enter()
		return b[0], other
	}
}

// A bounce buffer that its client could take away is not mapped: the log says why, and the client, which is told, has to
// send its blocks.
func TestUnsealedBounceIsRefused(t *testing.T) {
	logged := make(chan string, 100)
	_, first := newLocal(t, func(c *server.Config) { c.Log = func(line string) { logged <- line } })
	before := sys.Stats().Mappings
	said, r := first.given(t, memoryOf(t, 1<<20, false))
	require.EqualValues(t, 1, said)
	line := <-logged
	require.Contains(t, line, "has to send its puts")
	require.Contains(t, line, "sealed: false")
	require.Equal(t, before, sys.Stats().Mappings)
	put, payload := r.bounced("key", []byte("data"), 0)
	status, _ := r.do(message.Put, put, payload)
	require.Equal(t, message.Malformed, status)
	r.mustPut("key", []byte("data"))
}

// A bounce buffer may be shorter than the longest. Then nothing behind its end is read.
func TestShortBounce(t *testing.T) {
	_, first := newLocal(t)
	said, r := first.given(t, memoryOf(t, 1<<20+100, true))
	require.EqualValues(t, 2, said)
	zeros := make([]byte, 1000)
	for offset, want := range map[uint64]message.Status{
		1<<20 - 900: message.OK, 1<<20 - 899: message.Malformed, 1<<20 + 100: message.Malformed, 8 << 20: message.Malformed,
	} {
		put, payload := r.bounced("key", zeros, offset)
		status, _ := r.do(message.Put, put, payload)
		require.Equal(t, want, status, offset)
	}
}

// So it is where the server cannot map it.
func TestBounceThatCannotBeMapped(t *testing.T) {
	_, first := newLocal(t)
	b, err := local.NewBounce()
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	stop := sys.FailCall("mmap", syscall.ENOMEM)
	r, taken := first.offering(b)
	stop()
	require.False(t, taken)
	said, payload := r.bounced("key", []byte("data"), 0)
	status, _ := r.do(message.Put, said, payload)
	require.Equal(t, message.Malformed, status)
	r.mustPut("key", []byte("data"))
}

// A client that ends in the middle of its puts, or before its session, leaves nothing.
func TestBounceEndsWithItsConnection(t *testing.T) {
	var engine *servertest.Engine
	_, first := newLocal(t, engineOf(&engine))
	before := sys.Stats()
	for range 3 {
		b, err := local.NewBounce()
		require.NoError(t, err)
		_, memory, ok := b.Take(1 << 20)
		require.True(t, ok)
		r, taken := first.offering(b)
		require.True(t, taken)
		for n := range 8 {
			said, payload := r.bounced(fmt.Sprint(n), memory, 0)
			r.say(message.Put, said, payload)
		}
		require.NoError(t, r.nc.Close())
		require.NoError(t, b.Close())
		require.Eventually(t, func() bool { return sys.Stats() == before }, 20*time.Second, time.Millisecond)
		quiet(t, engine)
	}
	b, err := local.NewBounce()
	require.NoError(t, err)
	i := first.invite()
	i.Bounce = b
	status, _ := first.share(i.Name)
	require.Equal(t, message.OK, status)
	fd, socket, err := i.Await(time.Now().Add(20 * time.Second))
	require.NoError(t, err)
	require.True(t, i.Taken)
	sys.CloseAll(fd, socket)
	require.NoError(t, errors.Join(i.Close(), b.Close()))
	require.Eventually(t, func() bool { return sys.Stats() == before }, 20*time.Second, time.Millisecond)
}

// In steady state a put by way of the bounce buffer allocates nothing in the server.
func TestBouncedPutAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector a sync.Pool drops what it is given now and then")
	}
	engine := &steady{block: make([]byte, 100<<10)}
	_, first := newLocal(t, func(c *server.Config) { c.Store = engine })
	r, _ := first.bouncing()
	put, data := r.bounced("key", make([]byte, 100<<10), 0)
	engine.tag.Store(&put.Tag)
	run := r.runner(1 << 10)
	require.Zero(t, testing.AllocsPerRun(50, func() { run(message.Put, put, data) }))
}
