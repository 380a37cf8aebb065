package fabric

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

func fill(mem []byte, from byte) {
	for i := range mem {
		mem[i] = from + byte(i*7)
	}
}

// TestOneSided: writes and reads of more than one slice, and CO5: an operation
// of k slices completes once, with the sum of their bytes.
func TestOneSided(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.SliceBytes = 100 })
	defer w.close(t)
	w.connect(t)
	a, idA, _ := memory(t, w.fabs[0], 1000)
	b, _, atB := memory(t, w.fabs[1], 2000)
	fill(a, 1)
	fill(b[1000:], 99)
	res := done(t, w.fabs[0], post(t, w.fabs[0], Request{Kind: Write, Peer: 1, Region: idA, Off: 10, Bytes: 950, Remote: atB, RemoteOff: 20}))
	require.EqualValues(t, 950, res.NumBytes)
	require.Equal(t, a[10:960], b[20:970])
	require.Zero(t, b[970])
	require.Zero(t, b[19])
	res = done(t, w.fabs[0], post(t, w.fabs[0], Request{Kind: Read, Peer: 1, Region: idA, Off: 5, Bytes: 333, Remote: atB, RemoteOff: 1100}))
	require.EqualValues(t, 333, res.NumBytes)
	require.Equal(t, b[1100:1433], a[5:338])
	done(t, w.fabs[0], post(t, w.fabs[0], Request{Kind: Write, Peer: 1, Remote: atB}))
}

// TestImmediates: bytes are there before the number, on a carrier without an
// order; numbers may come before their receivers or after them.
func TestImmediates(t *testing.T) {
	require.True(t, immediatesInTime(t, sound))
}

func immediatesInTime(t *testing.T, m mutant) bool {
	w, err := openWorld(m, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.SliceBytes = 64 })
	require.NoError(t, err)
	defer w.close(t)
	w.connect(t)
	w.net.Inject(fake.Fault{Point: fake.AtWire, Op: transport.OpWrite, Chance: 0.5, MinDelay: time.Millisecond, MaxDelay: 3 * time.Millisecond})
	a, idA, _ := memory(t, w.fabs[0], 640)
	b, _, atB := memory(t, w.fabs[1], 640)
	good := true
	for round := range 10 {
		fill(a, byte(round))
		early := op.Ref{}
		if round%2 == 0 {
			early = post(t, w.fabs[1], Request{Kind: ReceiveImm, Peer: 0})
		}
		ref := post(t, w.fabs[0], Request{Kind: WriteImm, Peer: 1, Region: idA, Bytes: 640, Remote: atB, Imm: uint32(round)})
		if round%2 == 1 {
			early = post(t, w.fabs[1], Request{Kind: ReceiveImm, Peer: 0})
		}
		got, err := w.fabs[1].Wait(early, inTime())
		if err != nil {
			sent, _ := w.fabs[0].Look(ref)
			t.Fatalf("round %d: %v; sent %+v; stats %+v %+v", round, err, sent, w.fabs[0].Stats(), w.fabs[1].Stats())
		}
		good = good && bytes.Equal(a, b)
		require.EqualValues(t, round, got.Imm)
		require.NoError(t, w.fabs[1].Drop(early))
		require.EqualValues(t, 640, done(t, w.fabs[0], ref).NumBytes)
	}
	return good
}

// TestMessagesPair is CO12: the message's own number tells which receive it has come
// into, not the order of any side.
func TestMessagesPair(t *testing.T) {
	require.True(t, messagesPair(t, sound))
}

func messagesPair(t *testing.T, m mutant) bool {
	w, err := openWorld(m, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.Mode = Messages })
	require.NoError(t, err)
	defer w.close(t)
	w.connect(t)
	const n, size = 40, 32
	a, idA, _ := memory(t, w.fabs[0], n*size)
	b, idB, _ := memory(t, w.fabs[1], n*size)
	var recvs, sends []op.Ref
	for i := range n {
		recvs = append(recvs, post(t, w.fabs[1], Request{Kind: Recv, Peer: 0, Region: idB, Off: int64(i * size), Bytes: size}))
	}
	for i := range n {
		fill(a[i*size:][:size], byte(i+1))
		sends = append(sends, post(t, w.fabs[0], Request{Kind: Send, Peer: 1, Region: idA, Off: int64(i * size), Bytes: int64(i%size + 1)}))
	}
	right, numbers := true, map[uint32]bool{}
	for i, r := range recvs {
		res := done(t, w.fabs[1], r)
		numbers[res.Imm] = true
		k := int(res.Imm) - 1 // the message that came
		right = right && k >= 0 && k < n && res.NumBytes == int64(k%size+1) &&
			bytes.Equal(a[k*size:][:res.NumBytes], b[i*size:][:res.NumBytes])
	}
	for i, r := range sends {
		require.EqualValues(t, i%size+1, done(t, w.fabs[0], r).NumBytes)
	}
	require.Len(t, numbers, n)
	return right
}

// TestPostFails is CO6: slices that could not be posted give their places
// back, those before are waited for, and the operation fails once.
func TestPostFails(t *testing.T) {
	for _, kind := range []Kind{Write, WriteImm} {
		require.True(t, placesComeBack(t, sound, kind))
	}
}

func placesComeBack(t *testing.T, m mutant, kind Kind) bool {
	w, err := openWorld(m, testenv.Seed(t), 2, fake.Config{}, func(c *Config) { c.SliceBytes, c.SendDepth = 10, 10 })
	require.NoError(t, err)
	if m == sound {
		defer w.close(t)
	}
	w.connect(t)
	f := w.fabs[0]
	a, idA, _ := memory(t, f, 100)
	_, _, atB := memory(t, w.fabs[1], 100)
	boom := errors.New("the device says no")
	r := Request{Kind: kind, Peer: 1, Region: idA, Bytes: int64(len(a)), Remote: atB}
	for j := range 9 {
		in := w.net.Inject(fake.Fault{Point: fake.AtPostSend, Skip: j, Times: 1, Err: boom})
		ref, err := f.Post(&r)
		in.Remove()
		switch {
		case errors.Is(err, transport.ErrWouldBlock) && m != sound:
			return false
		case j == 0:
			require.ErrorIs(t, err, boom, "nothing has happened")
		default:
			require.NoError(t, err)
			failed(t, f, ref, boom)
		}
	}
	r.Kind = Write
	done(t, f, post(t, f, r)) // all places are there
	require.Zero(t, f.table.Stats().InUse)
	return m == sound
}

// TestBounds: at each bound an operation is refused at once, and nothing has
// happened.
func TestBounds(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 3, fake.Config{}, func(c *Config) {
		c.NumPeers, c.NumTransfers, c.NumRegions, c.SendDepth, c.SliceBytes = 1, 6, 2, 4, 10
	})
	defer w.close(t)
	f := w.fabs[0]
	require.NoError(t, f.Connect(1, inTime()))
	_, err := f.Post(&Request{Kind: ReceiveImm, Peer: 2})
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	require.ErrorContains(t, err, "1 peers are known")
	_, idA, _ := memory(t, f, 100)
	_, _, atB := memory(t, w.fabs[1], 100)
	_, _, _ = memory(t, f, 1)
	_, err = f.Register(make([]byte, 1), 0)
	require.ErrorIs(t, err, transport.ErrWouldBlock)

	w.net.SetUnresponsive(w.devs[1], true) // nothing completes for a while
	r := Request{Kind: Write, Peer: 1, Region: idA, Bytes: 30, Remote: atB}
	first := post(t, f, r)
	_, err = f.Post(&r)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	require.ErrorContains(t, err, "send_depth")
	r.Bytes = 10
	second := post(t, f, r)
	var waiting []op.Ref
	for range 4 {
		waiting = append(waiting, post(t, f, Request{Kind: ReceiveImm, Peer: 1}))
	}
	_, err = f.Post(&Request{Kind: ReceiveImm, Peer: 1})
	require.ErrorIs(t, err, op.ErrWouldBlock)
	require.ErrorIs(t, f.CloseRegion(idA), transport.ErrBusy)
	// The peer does not answer: everything ends, with what has happened.
	for _, ref := range []op.Ref{first, second} {
		res, err := f.WaitReleased(ref, inTime())
		require.NoError(t, err)
		require.Equal(t, op.Failed, res.State)
		require.True(t, errors.Is(res.Err, endpoint.ErrUnreachable) || errors.Is(res.Err, ErrEnded), "%v", res.Err)
	}
	for _, ref := range waiting {
		failed(t, f, ref, ErrEnded)
	}
	require.NoError(t, f.CloseRegion(idA))
	require.ErrorIs(t, f.CloseRegion(idA), ErrRegion)
}

// TestUnmatched is CO8: immediates without a receive are bounded, and the peer waits;
// CO7: the window is never empty below the bound.
func TestUnmatched(t *testing.T) {
	require.NoError(t, unmatched(t, sound))
}

func unmatched(t *testing.T, m mutant) error {
	const window, bound, extra = 4, 8, 6
	w, err := openWorld(m, testenv.Seed(t), 2, fake.Config{NoReceiveTimeout: -1}, func(c *Config) {
		c.RecvDepth, c.NumUnmatched = window, bound
	})
	require.NoError(t, err)
	w.connect(t)
	f := w.fabs[0]
	defer func() {
		if m == sound {
			w.close(t)
		}
	}()
	_, _, atB := memory(t, w.fabs[1], 1)
	send := func(n uint32) op.Ref {
		return post(t, f, Request{Kind: WriteImm, Peer: 1, Remote: atB, Imm: n})
	}
	var sent []op.Ref
	for i := range bound + window {
		sent = append(sent, send(uint32(i)))
	}
	for _, r := range sent {
		if _, err := f.Wait(r, waitLimit(m)); err != nil {
			return err
		}
		require.NoError(t, f.Drop(r))
	}
	delayed := make([]op.Ref, extra)
	for i := range delayed {
		delayed[i] = send(uint32(bound + window + i))
	}
	if _, err := f.Wait(delayed[0], time.Now().Add(50*time.Millisecond)); err == nil {
		return errors.New("more were taken in than the bound")
	}
	got := map[uint32]bool{}
	for range bound + window + extra {
		r := post(t, w.fabs[1], Request{Kind: ReceiveImm, Peer: 0})
		res, err := w.fabs[1].Wait(r, waitLimit(m))
		if err != nil {
			return err
		}
		got[res.Imm] = true
		require.NoError(t, w.fabs[1].Drop(r))
	}
	for _, r := range delayed {
		done(t, f, r)
	}
	require.Len(t, got, bound+window+extra)
	require.Zero(t, w.fabs[1].Stats().Strays)
	return nil
}

// TestCancel is CO4 in two steps: the waiter wakes at once, the memory comes
// back when the carrier is done with it.
func TestCancel(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, nil)
	defer w.close(t)
	w.connect(t)
	f := w.fabs[0]
	a, idA, _ := memory(t, f, 64)
	b, _, atB := memory(t, w.fabs[1], 64)
	fill(b, 7)
	delayed := w.net.Inject(fake.Fault{Point: fake.AtWire, MinDelay: time.Second, MaxDelay: time.Second})
	ref := post(t, f, Request{Kind: Read, Peer: 1, Region: idA, Bytes: 64, Remote: atB})
	won, err := f.Cancel(ref)
	require.NoError(t, err)
	require.True(t, won)
	won, err = f.Cancel(ref)
	require.NoError(t, err)
	require.False(t, won)
	res, err := f.Wait(ref, inTime())
	require.NoError(t, err)
	require.Equal(t, op.Cancelled, res.State)
	require.False(t, res.Released)
	require.ErrorIs(t, f.CloseRegion(idA), transport.ErrBusy)
	failed(t, f, ref, op.ErrCancelled)
	delayed.Remove()
	clear(a)
	require.NoError(t, f.CloseRegion(idA))
	require.Equal(t, make([]byte, 64), a)
	_, err = f.Look(ref)
	require.ErrorIs(t, err, op.ErrStale)

	// A caller that waits for a number is released at once, and takes no other's number.
	imm := post(t, f, Request{Kind: ReceiveImm, Peer: 1})
	require.NoError(t, f.Drop(imm))
	next := post(t, f, Request{Kind: ReceiveImm, Peer: 1})
	_, _, atA := memory(t, f, 1)
	done(t, w.fabs[1], post(t, w.fabs[1], Request{Kind: WriteImm, Peer: 0, Remote: atA, Imm: 5}))
	require.EqualValues(t, 5, done(t, f, next).Imm)
	require.Zero(t, f.table.Stats().InUse)
}

// TestRefused: a peer's refusal ends the connection; the next operation has
// another one.
func TestRefused(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), 2, fake.Config{}, nil)
	defer w.close(t)
	w.connect(t)
	f := w.fabs[0]
	_, idA, _ := memory(t, f, 64)
	mem := make([]byte, 64)
	id, err := w.fabs[1].Register(mem, transport.AccessRead)
	require.NoError(t, err)
	at, err := w.fabs[1].Remote(id)
	require.NoError(t, err)
	waits := post(t, w.fabs[1], Request{Kind: ReceiveImm, Peer: 0})
	failed(t, f, post(t, f, Request{Kind: Write, Peer: 1, Region: idA, Bytes: 64, Remote: at}), ErrRefused)
	failed(t, w.fabs[1], waits, ErrEnded)
	require.Equal(t, make([]byte, 64), mem)
	require.Eventually(t, func() bool {
		ref, err := f.Post(&Request{Kind: Read, Peer: 1, Region: idA, Bytes: 64, Remote: at})
		if err != nil {
			return false
		}
		res, err := f.WaitReleased(ref, inTime())
		return err == nil && res.Err == nil
	}, soon, time.Millisecond)
}

// TestModes: ends of different modes do not connect, and say so.
func TestModes(t *testing.T) {
	net := fake.New(fake.Config{})
	var f [2]*Fabric
	for i := range f {
		var err error
		f[i], err = Open(Config{Transport: net.Transport(), Mode: Mode(i)})
		require.NoError(t, err)
	}
	require.ErrorIs(t, f[0].Connect(1, time.Now()), endpoint.ErrConnecting)
	buf := make([]byte, MaxHandshakeBytes)
	to, n, ok, err := f[0].Next(buf, inTime())
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 1, to)
	require.ErrorIs(t, f[1].Deliver(0, buf[:n]), transport.ErrMismatch)
	require.ErrorIs(t, f[1].Deliver(0, buf[:4]), endpoint.ErrHandshake)
	require.ErrorIs(t, f[0].Deliver(1, buf[:n-1]), endpoint.ErrHandshake)
	_, err = f[0].Post(&Request{Kind: Send, Peer: 1})
	require.ErrorIs(t, err, transport.ErrNotSupported)
	_, err = f[1].Post(&Request{Kind: ReceiveImm, Peer: 0})
	require.ErrorIs(t, err, transport.ErrNotSupported)
	_, _, _, err = f[0].Next(buf[:9], inTime())
	require.ErrorIs(t, err, ErrInvalid)
	for i := range f {
		require.NoError(t, f[i].Close(inTime()))
	}
}
