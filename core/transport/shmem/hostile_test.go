package shmem

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// TestPendingConnections: any other client that comes to the listener is sent away or has
// to wait, takes no more than some descriptors, and keeps no peer from connecting.
func TestPendingConnections(t *testing.T) {
	before := sys.Stats()
	p := newPair(t, 4096)
	idle := sys.Stats().OpenFDs
	if bytes.Compare(p.ep[0].name[:], p.ep[1].name[:]) < 0 { // the first shall be the one that does not dial
		p.ep[0], p.ep[1] = p.ep[1], p.ep[0]
		p.tr[0], p.tr[1] = p.tr[1], p.tr[0]
		p.memory[0], p.memory[1] = p.memory[1], p.memory[0]
		p.region[0], p.region[1] = p.region[1], p.region[0]
	}
	name := socketName(p.tr[0].name)
	var conns []*sys.FD
	dial := func() *sys.FD {
		fd, err := dial(name, time.Now().Add(soon))
		require.NoError(t, err)
		conns = append(conns, fd)
		return fd
	}
	for range 3 * maxPending {
		dial() // and says nothing
	}
	hello := message{kind: kindHello, to: p.ep[0].name}
	for _, say := range [][]byte{
		{1}, bytes.Repeat([]byte{0xff}, messageBytes), bytes.Repeat([]byte{1}, 2*messageBytes),
		(&message{kind: kindAsk, to: p.ep[0].name}).encode(),
		(&message{kind: kindHello}).encode(), // to no endpoint
		hello.encode(),                       // without descriptors
		(&message{kind: 9, to: p.ep[0].name}).encode(),
		(&message{kind: kindHello, to: p.ep[0].name, slot: MaxEndpoints}).encode(),
	} {
		require.NoError(t, sys.Send(dial(), say))
	}
	for _, fds := range badDescriptors(t, p) {
		require.NoError(t, send(dial(), hello, fds...))
		sys.CloseAll(fds[2:]...)
	}
	time.Sleep(20 * time.Millisecond) // for the connection manager
	for i := range 2 * maxOffers {    // right, but from others than Connect is going to want
		hello.from[0] = byte(i)
		require.NoError(t, send(dial(), hello, p.tr[1].rings.fd, p.tr[1].table.shared.fd, p.ep[1].lane.fd))
	}
	require.Eventually(t, func() bool {
		p.ep[0].mu.Lock()
		defer p.ep[0].mu.Unlock()
		return len(p.ep[0].offers) == maxOffers
	}, soon, time.Millisecond)
	time.Sleep(20 * time.Millisecond) // more do not come
	p.ep[0].mu.Lock()
	require.Len(t, p.ep[0].offers, maxOffers)
	p.ep[0].mu.Unlock()
	held := sys.Stats().OpenFDs - idle - int64(len(conns))
	require.LessOrEqual(t, held, int64(2*(maxPending+maxOffers)))
	first := max(0, bytes.Compare(p.ep[0].name[:], p.ep[1].name[:])) // that calls the other
	called := make(chan error, 1)
	go func() { called <- p.ep[first].Connect(p.ep[1-first].Local(), time.Now().Add(soon)) }()
	time.Sleep(50 * time.Millisecond) // its offer comes behind those of others
	require.NoError(t, p.ep[1-first].Connect(p.ep[first].Local(), time.Now().Add(soon)))
	require.NoError(t, <-called)
	p.recv(1, 1, nil)
	p.send(0, transport.SendRequest{ID: 2, Op: transport.OpSend})
	require.Equal(t, transport.StatusOK, p.await(1, 1).Status)
	sys.CloseAll(conns...)
	p.poll(0)
	p.close(0, 1)
	require.Equal(t, before, sys.Stats())
}

// badDescriptors are lists of which each has something wrong. The third of
// each is the caller's.
func badDescriptors(t *testing.T, p *pair) (list [][]*sys.FD) {
	small, err := sys.NewMemfd("small")
	require.NoError(t, err)
	require.NoError(t, sys.Grow(small, laneBytes-1))
	wrong, err := sys.NewMemfd("not a lane")
	require.NoError(t, err)
	require.NoError(t, sys.Grow(wrong, laneBytes))
	for _, third := range []*sys.FD{small, wrong, shrinkable(t)} {
		list = append(list, []*sys.FD{p.tr[1].rings.fd, p.tr[1].table.shared.fd, third})
	}
	if huge, err := sys.NewHugeMemfd("huge"); err == nil { // no page is needed for the size
		require.NoError(t, sys.Grow(huge, laneBytes))
		list = append(list, []*sys.FD{p.tr[1].rings.fd, p.tr[1].table.shared.fd, huge})
	}
	return list
}

// shrinkable is a file that could lose its end. It comes by a socket, as any descriptor
// of a peer does.
func shrinkable(t *testing.T) *sys.FD {
	dir := t.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil {
		dir = "/dev/shm" // such a file has seals, as memory has
	}
	f, err := os.CreateTemp(dir, "")
	require.NoError(t, err)
	defer os.Remove(f.Name())
	require.NoError(t, f.Truncate(laneBytes))
	defer f.Close()
	return adopt(t, f)
}

// adopt lets a file come from a socket that is not ours.
func adopt(t *testing.T, f *os.File) *sys.FD {
	name := fmt.Sprintf("moewire-test-%d-%s", os.Getpid(), t.Name())
	listener, err := sys.ListenAbstract(name, 1)
	require.NoError(t, err)
	defer listener.Close()
	raw, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	require.NoError(t, err)
	defer syscall.Close(raw)
	require.NoError(t, syscall.Connect(raw, &syscall.SockaddrUnix{Name: "@" + name}))
	require.NoError(t, syscall.Sendmsg(raw, []byte{1}, syscall.UnixRights(int(f.Fd())), nil, 0))
	conn, err := sys.Accept(listener)
	require.NoError(t, err)
	defer conn.Close()
	_, fds, err := sys.Receive(conn, make([]byte, 1), 1)
	require.NoError(t, err)
	require.Len(t, fds, 1)
	return fds[0]
}

func TestMapRemote(t *testing.T) {
	file := shrinkable(t)
	defer file.Close()
	_, err := mapRemote(file, 1, true)
	require.Error(t, err, "a file that can shrink")
	m, err := sys.NewMemfd("memory")
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, sys.Grow(m, 4096))
	_, err = mapRemote(m, 4097, true)
	require.ErrorContains(t, err, "4096 bytes")
	got, err := mapRemote(m, 0, true)
	require.NoError(t, err)
	require.Len(t, got.Bytes(), 4096)
	require.NoError(t, got.Unmap())
}

// FuzzPeer lets a peer write anything at all into what it shares, and send any
// message, beside an endpoint that works: nothing crashes, each request ends
// once, no other memory of the endpoint's process changes, and everything can
// be closed once the peer is dead.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 2, 4, 5, 7, 0, 0, 0, 5, 0, 0, 0}) // touches a region for ever, and breaks off
	f.Add([]byte{5, 0, 0, 0, 5, 1, 0, 0, 5, 2, 0, 0, 5, 3, 0, 0, 6, 0, 0, 0})
	for where := range byte(5) {
		for what := range byte(12) {
			f.Add([]byte{5, 2, 0, 0, 5, 1, 0, 0, where, 2, what, 5, 5, 0, 0, 0, 6, 0, 0, 0, where, 0, what, 9, 5, 1, 1, 1, 6, 1, 0, 0})
		}
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 400 {
			return
		}
		before := sys.Stats()
		h := &hostile{pair: connected(t, 4096), outstanding: map[uint64]bool{}}
		h.guard = bytes.Repeat([]byte{0x5a}, 2048)
		copy(h.memory[0].Bytes()[2048:], h.guard)
		h.recv(1, 1<<40, h.piece(1, 0, 100))
		for ; len(script) >= 4; script = script[4:] {
			h.do(script[0]%8, script[1], script[2], script[3])
		}
		h.end()
		require.Equal(t, before, sys.Stats())
	})
}

// hostile is a pair of which the second is that.
type hostile struct {
	*pair
	outstanding map[uint64]bool
	last        uint64
	guard       []byte
}

func (h *hostile) do(what, a, b, c byte) {
	switch what {
	case 0: // what stands alone, in the lane
		offs := []int64{laneWindowOff, laneStateOff, laneTouchingOff, laneStarvedOff, lanePostedOff, laneEndedOff}
		h.word(h.ep[1].lane, offs[int(a)%len(offs)]).Store(h.value(b, c))
	case 1: // receives
		h.word(h.ep[1].lane, laneReceivesOff+8*(int64(a)%receiveBytes)).Store(h.value(b, c))
	case 2: // ends of receives
		h.word(h.ep[1].lane, laneEndsOff+8*(int64(a)%32)).Store(h.value(b, c))
	case 3: // the table
		row := int64(h.region[1].Remote().Key % MaxRegions)
		offs := []int64{tableVersionOff, tableMemoriesOff, tableRegionsOff + regionBytes*row + 8*int64(c%5)}
		h.word(h.tr[1].table.shared, offs[int(a)%len(offs)]).Store(h.value(b, c))
	case 4: // our bell
		h.word(h.tr[0].rings, 8*(int64(a)%(bellBytes/8))).Store(h.value(b, c))
	case 5:
		h.post(a%4, b, c)
	case 6:
		h.tr[0].bell.ring(h.ep[0].slot)
		h.tick()
	case 7:
		h.say(a, b, c)
	}
}

func (h *hostile) word(s *shared, off int64) interface{ Store(uint64) } {
	return sys.Word(s.Bytes(), off)
}

// value is one that could be meant, or anything.
func (h *hostile) value(b, c byte) uint64 {
	at := h.region[1].Remote()
	memory := h.region[1].(*Region).memoryID
	values := []uint64{
		0, uint64(c), ^uint64(0) - uint64(c), 1 << (c % 64), at.Key, memory, memory ^ 1<<(c%64), MaxRequestBytes + 1,
		4096 - uint64(c), uint64(transport.OpRecv), uint64(transport.OpRecvImm) | uint64(c)<<32,
		uint64(transport.OpRecv) | uint64(transport.StatusLocal)<<8, MaxDepth, h.ep[1].numPosted + uint64(c%16),
	}
	return values[int(b)%len(values)]
}

// post lets our endpoint do something right.
func (h *hostile) post(kind, b, c byte) {
	h.last++
	q := transport.SendRequest{
		ID: h.last, Op: transport.OpSend + transport.Opcode(kind), Local: h.piece(0, int(b), int(c)),
		Remote: h.region[1].Remote(), RemoteOff: uint64(c),
	}
	var n int
	if b&1 == 0 {
		n, _ = h.ep[0].PostSend([]transport.SendRequest{q})
	} else {
		n, _ = h.ep[0].PostRecv([]transport.RecvRequest{{ID: h.last, Local: q.Local}})
	}
	if n == 1 {
		h.outstanding[h.last] = true
	}
}

func (h *hostile) tick() {
	h.poll(0)
	_ = h.tr[0].Wait(0)
}

// say sends a message on the connection.
func (h *hostile) say(a, b, c byte) {
	m := message{kind: messageKind(a%5 + 1), from: h.ep[1].name, to: h.ep[0].name, slot: uint32(b), memory: h.value(b, c)}
	if c&1 == 0 {
		m.memory = h.region[1].(*Region).memoryID
	}
	raw := m.encode()
	if c&2 == 0 {
		raw[int(b)%len(raw)] ^= c
	}
	_ = sys.Send(h.ep[1].conn.fd, raw, [][]*sys.FD{nil, {h.memory[1].fd}, {h.ep[1].t.rings.fd, h.tr[1].table.shared.fd, h.memory[1].fd}}[c%3]...)
	time.Sleep(100 * time.Microsecond) // for the connection manager
}

// end lets the peer die, after which ours must be whole.
func (h *hostile) end() {
	mine := h.memory[0].Bytes()[2048:]
	require.Equal(h.t, h.guard, mine)
	h.word(h.tr[0].rings, bellNewsOff).Store(binary.LittleEndian.Uint64([]byte("anything")))
	require.NoError(h.t, h.ep[0].Retire())
	Kill(h.tr[1])
	require.NoError(h.t, h.memory[1].Close())
	for id := range h.outstanding {
		h.await(id, 0)
	}
	require.Len(h.t, h.done, len(h.outstanding), "nothing has ended that was not posted")
	h.close(0)
}

// FuzzMessage reads messages, and addresses.
func FuzzMessage(f *testing.F) {
	m := message{kind: kindAsk, slot: 3, memory: 77}
	f.Add(m.encode())
	f.Add(address{slot: 9}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeMessage(b); err == nil {
			require.Equal(t, b, m.encode())
		}
		if a, err := decodeAddress(b); err == nil {
			require.Equal(t, b, a.encode())
		}
	})
}
