package verbs

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

func TestDepthIsTheBound(t *testing.T) {
	tr := openDevice(t, small)
	a, b := connected(t, tr, 100)
	local := memory(t, tr, 64, both)
	receives := make([]transport.RecvRequest, 150)
	sends := make([]transport.SendRequest, 150)
	for i := range receives {
		receives[i].ID = uint64(i)
		sends[i] = transport.SendRequest{
			ID: 1000 + uint64(i), Op: transport.OpWriteImm, Imm: uint32(i), Local: whole(local), Remote: local.Remote(),
		}
	}
	// More than one chain, and as many as there is room for.
	n, err := b.PostRecv(receives)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	require.Equal(t, 100, n)
	n, err = b.PostRecv(receives)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	require.Zero(t, n)
	n, err = a.PostSend(sends)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	require.Equal(t, 100, n)
	all := await(t, tr, 200)
	for i := range uint32(100) {
		assert.Equal(t, i, all[uint64(i)].Imm)
		assert.Equal(t, transport.StatusOK, all[1000+uint64(i)].Status)
	}
	// Room again.
	n, err = b.PostRecv(receives[:100])
	require.NoError(t, err)
	require.Equal(t, 100, n)
}

func TestWrongRequestStopsAtIt(t *testing.T) {
	tr := openDevice(t, small)
	a, _ := connected(t, tr, 8)
	local := memory(t, tr, 64, both)
	good := transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: whole(local), Remote: local.Remote()}
	tooMany := make([]transport.Piece, tr.Limits().NumPieces+1)
	for i := range tooMany {
		tooMany[i] = transport.Piece{Region: local, Bytes: 1}
	}
	closed := memory(t, tr, 64, both)
	require.NoError(t, closed.Close())
	for text, change := range map[string]func(*transport.SendRequest){
		"Op is 5":                   func(r *transport.SendRequest) { r.Op = transport.OpRecv },
		"60 bytes at 5 of a region": func(r *transport.SendRequest) { r.Local = []transport.Piece{{Region: local, Off: 5, Bytes: 60}} },
		"-1 bytes at 0 of a region": func(r *transport.SendRequest) { r.Local = []transport.Piece{{Region: local, Bytes: -1}} },
		"pieces, at most":           func(r *transport.SendRequest) { r.Local = tooMany },
		"another transport":         func(r *transport.SendRequest) { r.Local = []transport.Piece{{Region: nil}} },
		"or a closed one":           func(r *transport.SendRequest) { r.Local = whole(closed) },
		"is none of this carrier":   func(r *transport.SendRequest) { r.Remote.Key |= 1 << 40 },
		"a read cannot be inline":   func(r *transport.SendRequest) { r.Op, r.Inline, r.Local = transport.OpRead, true, nil },
	} {
		bad := good
		change(&bad)
		n, err := a.PostSend([]transport.SendRequest{good, bad, good})
		require.ErrorContains(t, err, text)
		require.Equal(t, 1, n)
		await(t, tr, 1)
	}
	// Nothing stayed pinned or taken.
	require.Zero(t, a.(*endpoint).outstanding())
	require.NoError(t, local.Close())
}

func TestRegionIsBusyWhileNamed(t *testing.T) {
	tr := openDevice(t, quick)
	local := memory(t, tr, 64, both)
	a, _ := connected(t, tr, 4)
	postRecv(t, a, transport.RecvRequest{ID: 1, Local: whole(local)})
	require.ErrorIs(t, local.Close(), transport.ErrBusy)
	require.ErrorIs(t, tr.Close(), transport.ErrBusy)
	require.NoError(t, a.Retire())
	await(t, tr, 1)
	require.NoError(t, local.Close())
}

func TestBoundsOfEndpoints(t *testing.T) {
	tr := openDevice(t, Config{NumEndpoints: 3, NumCompletions: 100})
	spec := transport.EndpointSpec{SendDepth: 20, RecvDepth: 20}
	newEndpoint(t, tr, 20)
	newEndpoint(t, tr, 20)
	_, err := tr.NewEndpoint(spec)
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.ErrorContains(t, err, "80 of 100 completions")
	third := newEndpoint(t, tr, 10)
	_, err = tr.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	closeEndpoint(t, tr, third)
	again := newEndpoint(t, tr, 10)
	assert.NotEqual(t, third.ID(), again.ID())

	for _, wrong := range []transport.EndpointSpec{{}, {SendDepth: 1}, {SendDepth: 1, RecvDepth: 257}} {
		_, err = tr.NewEndpoint(wrong)
		require.ErrorContains(t, err, "must be 1 to 256")
	}
}

func TestRegisterRefuses(t *testing.T) {
	tr := openDevice(t, Config{NumEndpoints: 1, MaxRegionBytes: 8192})
	m, err := sys.MapAnonymous(20000)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Unmap()) }()
	_, err = tr.Register(nil, both)
	require.ErrorContains(t, err, "mem is empty")
	_, err = tr.Register(m.Bytes(), 8)
	require.ErrorContains(t, err, "access is 0x8")
	_, err = tr.Register(m.Bytes(), both)
	require.ErrorIs(t, err, transport.ErrNotSupported)
	require.ErrorContains(t, err, "at most 8192")
}

// TestChunks registers local memory above the device's bound: pieces that
// touch several registrations are cut.
func TestChunks(t *testing.T) {
	tr := openDevice(t, Config{NumEndpoints: 2, MaxRegionBytes: 8192})
	a, _ := connected(t, tr, 4)
	src := memory(t, tr, 20000, 0)
	require.Len(t, src.(*region).mrs, 3)
	fillRandom(src, 1)
	dst := memory(t, tr, 8192, both)
	post(t, a, transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: []transport.Piece{
		{Region: src, Off: 8000, Bytes: 1000}, {Region: src, Off: 16000, Bytes: 4000},
	}, Remote: dst.Remote()})
	c := await(t, tr, 1)[1]
	require.Equal(t, transport.StatusOK, c.Status)
	require.EqualValues(t, 5000, c.NumBytes)
	assert.True(t, bytes.Equal(src.Bytes()[8000:9000], dst.Bytes()[:1000]))
	assert.True(t, bytes.Equal(src.Bytes()[16000:], dst.Bytes()[1000:5000]))
}

func TestInlineIsCopiedWhenPosted(t *testing.T) {
	tr := openDevice(t, small)
	n := tr.Limits().InlineBytes
	if n == 0 {
		testenv.Lacking(t, "inline", tr.Device()+" takes no inline data")
	}
	a, b := connected(t, tr, 64)
	src, dst := memory(t, tr, n, 0), memory(t, tr, 64*n, both)
	for i := range 64 {
		postRecv(t, b, transport.RecvRequest{ID: uint64(i), Local: []transport.Piece{{Region: dst, Off: i * n, Bytes: n}}})
	}
	for i := range 64 {
		for j := range src.Bytes() {
			src.Bytes()[j] = byte(i + j)
		}
		post(t, a, transport.SendRequest{ID: 100 + uint64(i), Op: transport.OpSend, Inline: true, Local: whole(src)})
		clear(src.Bytes())
	}
	await(t, tr, 128)
	for i := range 64 {
		for j := range n {
			require.Equal(t, byte(i+j), dst.Bytes()[i*n+j])
		}
	}
	_, err := a.PostSend([]transport.SendRequest{{Op: transport.OpSend, Inline: true, Local: whole(dst)}})
	require.ErrorContains(t, err, "bytes inline, at most")
}

func TestPostAndPollAllocateNothing(t *testing.T) {
	tr := openDevice(t, small)
	a, b := connected(t, tr, 16)
	local := memory(t, tr, 64, both)
	sends := []transport.SendRequest{{ID: 1, Op: transport.OpWriteImm, Local: whole(local), Remote: local.Remote()}}
	receives := []transport.RecvRequest{{ID: 2}}
	done := make([]transport.Completion, 16)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := b.PostRecv(receives); err != nil {
			t.Error(err)
		}
		if _, err := a.PostSend(sends); err != nil {
			t.Error(err)
		}
		for got := 0; got < 2; {
			n, err := tr.Poll(done)
			if err != nil {
				t.Error(err)
			}
			got += n
		}
	})
	assert.Zero(t, allocs)
}

func TestWait(t *testing.T) {
	tr := openDevice(t, Config{NumEndpoints: 2})
	begin := time.Now()
	require.NoError(t, tr.Wait(20*time.Millisecond))
	assert.GreaterOrEqual(t, time.Since(begin), 20*time.Millisecond)

	tr.Wake() // the next one
	tr.Wake()
	require.NoError(t, tr.Wait(time.Hour))
	time.AfterFunc(20*time.Millisecond, tr.Wake) // now
	require.NoError(t, tr.Wait(time.Hour))

	// A completion that came before.
	a, b := connected(t, tr, 8)
	local := memory(t, tr, 64, both)
	write := transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: whole(local), Remote: local.Remote()}
	post(t, a, write)
	time.Sleep(50 * time.Millisecond)
	require.NoError(t, tr.Wait(time.Hour))
	require.Len(t, await(t, tr, 1), 1)
	// Completions that come while it sleeps, several times, so that the
	// queue is armed again each time.
	for range 10 {
		time.AfterFunc(5*time.Millisecond, func() { _, _ = b.PostSend([]transport.SendRequest{write}) })
		for done := make([]transport.Completion, 1); ; {
			require.NoError(t, tr.Wait(time.Hour))
			if n, err := tr.Poll(done); n == 1 || err != nil {
				require.NoError(t, err)
				break
			}
		}
	}
}

// TestWaitSeesWhatASmallPollLeft: completions from before the queue was armed
// raise no event.
func TestWaitSeesWhatASmallPollLeft(t *testing.T) {
	tr := openDevice(t, small)
	a, _ := connected(t, tr, 200)
	local := memory(t, tr, 64, both)
	write := transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: whole(local), Remote: local.Remote()}
	for range 200 {
		post(t, a, write)
	}
	time.Sleep(200 * time.Millisecond) // most of them are there now
	var done [7]transport.Completion
	for got := 0; got < 200; {
		require.NoError(t, tr.Wait(time.Hour))
		n, err := tr.Poll(done[:])
		require.NoError(t, err)
		got += n
	}
}

func TestAfterClose(t *testing.T) {
	before := sys.Stats()
	tr := openDevice(t, small)
	waited := make(chan error, 1)
	go func() { waited <- tr.Wait(time.Hour) }()
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, tr.Close())
	<-waited
	require.ErrorIs(t, tr.Wait(time.Hour), transport.ErrClosed)
	_, err := tr.Poll(make([]transport.Completion, 1))
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = tr.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = tr.Register(make([]byte, 1), 0)
	require.ErrorIs(t, err, transport.ErrClosed)
	assert.Zero(t, tr.PollEvents(make([]transport.Event, 1)))
	tr.Wake()
	assert.Equal(t, before, sys.Stats())
}
