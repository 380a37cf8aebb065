package server_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/wire"
)

const keyText = "1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func (timeout) Error() string { return "" }

func (timeout) Is(err error) bool { n, ok := err.(net.Error); return ok && n.Timeout() }

func TestOpenSaysWhatThereIs(t *testing.T) {
	s, e := serve(t)
	a, b := open(t, s), open(t, s)
	require.NotEqual(t, a.opened.TagKey, b.opened.TagKey, "each session has a mask of its own")
	for _, r := range []*raw{a, b} {
		r.opened.TagKey = r.opened.TagKey.Mask(r.session.Export(message.TagSecret))
	}
	require.Equal(t, e.TagKey(), a.opened.TagKey)
	require.Equal(t, a.opened, b.opened)
	require.EqualValues(t, 32, a.opened.Contexts)
	require.EqualValues(t, 16<<20, a.opened.BlockBytes)
	require.NotZero(t, a.opened.Boot)
	other, _ := serve(t)
	require.NotEqual(t, a.opened.Boot, open(t, other).opened.Boot)
}

// What cannot be served is refused and counted, and the connection goes on.
func TestRefusals(t *testing.T) {
	s, engine := serve(t)
	r := open(t, s)
	long := make([]byte, message.MaxKeyBytes+1)
	for what, c := range map[string]struct {
		code    message.Code
		said    message.Request
		payload []byte
		want    message.Status
	}{
		"unknown code":      {0x77, message.Request{}, []byte("abc"), message.Unknown},
		"no keys":           {message.Get, message.Request{}, nil, message.Malformed},
		"too many keys":     {message.Get, message.Request{NumKeys: 513}, make([]byte, 2000), message.Malformed},
		"short table":       {message.Get, message.Request{NumKeys: 2}, table("abcdef"), message.Malformed},
		"long table":        {message.Exists, message.Request{NumKeys: 1}, table("a", "b"), message.Malformed},
		"empty key":         {message.Delete, message.Request{NumKeys: 2}, table("", "b"), message.Malformed},
		"long key":          {message.Delete, message.Request{NumKeys: 2}, table(string(long), "b"), message.Malformed},
		"a flag":            {message.Exists, message.Request{NumKeys: 1, Flags: 1}, table("a"), message.Malformed},
		"put without key":   {message.Put, message.Request{Bytes: 3}, []byte("abc"), message.Malformed},
		"put of other size": {message.Put, message.Request{KeyBytes: 1, Bytes: 3}, []byte("kab"), message.Malformed},
		"wrong tag":         {message.Put, message.Request{KeyBytes: 1, Bytes: 3}, []byte("kabc"), message.BadTag},
		"no such handle":    {message.Commit, message.Request{Handle: 1 << 40}, nil, message.Unknown},
		"no such lease":     {message.Read, message.Request{Handle: 3, Bytes: 3}, nil, message.Unknown},
		"write to nothing":  {message.Write, message.Request{Handle: 7, Bytes: 3}, []byte("abc"), message.Unknown},
		"too large":         {message.Put, message.Request{KeyBytes: 1, Bytes: 17 << 20}, make([]byte, 17<<20+1), message.TooLarge},
		"bad namespace":     {message.Open, message.Request{}, []byte("abc"), message.Malformed},
	} {
		before := s.Counters().Replies(c.want)
		status, _ := r.do(c.code, c.said, c.payload)
		require.Equal(t, c.want, status, what)
		require.Equal(t, before+1, s.Counters().Replies(c.want), what)
	}
	r.opened.Namespace = 1
	status, _ := r.do(message.Exists, message.Request{NumKeys: 1}, table("a"))
	require.Equal(t, message.Unknown, status, "a namespace that was not opened")
	r.opened.Namespace = 0
	require.Zero(t, r.exists("k"), "nothing was stored")
	quiet(t, engine)
	require.EqualValues(t, 1, s.Counters().BadPuts.Load())
}

// SC2: as many requests run at a time as were granted; the others would block, at once, and
// are counted.
func TestCredits(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Contexts = 2 })
	engine.FlushFor = time.Hour
	r := open(t, s)
	for range 20 {
		r.say(message.Flush, message.Request{DeadlineUs: 500_000}, nil)
	}
	statuses := map[message.Status]int{}
	for range 20 {
		head, _ := r.readReply()
		statuses[message.Status(head.Status)]++
	}
	require.Equal(t, 3, statuses[message.OK], "%v", statuses)
	require.Equal(t, 17, statuses[message.WouldBlock], "%v", statuses)
	require.EqualValues(t, 17, s.Counters().Capped.Load())
	require.Zero(t, r.exists("a"), "there is room again")
}

// SC1: the contexts of a connection are its own. However many clients ask and do not read, another one is served,
// and what they have asked for holds the blocks of one part each.
func TestCreditsAreOnesOwn(t *testing.T) {
	const clients, perPart = 9, 2
	s, engine := serve(t)
	other := open(t, s)
	other.mustPut("key", make([]byte, message.PartBytes/perPart))
	for range clients {
		r := open(t, s)
		for range 33 {
			head := wire.Head{Code: message.Get, Extra: (&message.Request{NumKeys: 8}).Encode(make([]byte, message.RequestBytes))}
			payload := table("key", "key", "key", "key", "key", "key", "key", "key")
			require.NoError(t, r.out.Append(&head, [][]byte{payload}))
		}
		require.NoError(t, r.out.Flush()) // in one write: the server reads on while it cannot write
	}
	require.Eventually(t, func() bool { return s.Stats().Running >= clients*33 }, 20*time.Second, time.Millisecond)
	for range 100 {
		require.Equal(t, 1, other.exists("key"))
		held, _, _ := engine.Counts()
		require.LessOrEqual(t, held, clients*perPart)
	}
	require.Zero(t, s.Counters().Capped.Load())
}

// The keys of a get stay a chain, in whatever turns its blocks are leased: its beginning was used last.
func TestGetOfSeveralPartsIsAChain(t *testing.T) {
	s, engine := serve(t)
	r := open(t, s)
	r.mustPut("key", make([]byte, message.PartBytes/2))
	for _, num := range []int{1, 5} {
		r.say(message.Get, message.Request{NumKeys: uint16(num)}, table([]string{"key", "key", "key", "key", "key"}[:num]...))
		for last := false; !last; {
			head, _ := r.readReply()
			var p message.Part
			require.NoError(t, p.Decode(head.Extra, num))
			last = p.Last
		}
		r.exists("key") // the reply may be read before its end is noted
		_, touched, _ := engine.Counts()
		require.Equal(t, map[int]int{1: 0, 5: 5}[num], touched)
	}
}

// A client that asks and does not read loses its connection after a while, with what it
// held. Others are served meanwhile.
func TestClientThatDoesNotRead(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle = 300 * time.Millisecond })
	r, other := open(t, s), open(t, s)
	other.mustPut("key", make([]byte, 4<<20))
	for range 16 {
		r.say(message.Get, message.Request{NumKeys: 8}, table("key", "key", "key", "key", "key", "key", "key", "key"))
	}
	require.Eventually(t, func() bool {
		require.Equal(t, 1, other.exists("key"))
		return s.Counters().Idle.Load() == 1 && s.Stats().Clients == 1
	}, 30*time.Second, time.Millisecond)
	quiet(t, engine)
	require.EqualValues(t, 1, s.Counters().Lost.Load(), "its writer and its reader have failed, and it is one")
	require.Zero(t, s.Stats().Running)
}

// A client that stops in the middle of a block loses its connection, and the block its room.
func TestClientThatStopsInAPut(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle = 200 * time.Millisecond })
	r := open(t, s)
	said, payload := r.put("key", make([]byte, 1<<20))
	head := wire.Head{Code: message.Put, Request: 9, Extra: said.Encode(make([]byte, message.RequestBytes))}
	frame, err := r.session.Seal(nil, &head, payload)
	require.NoError(t, err)
	_, err = r.nc.Write(append(frame, payload[:1000]...))
	require.NoError(t, err)
	r.gone()
	quiet(t, engine)
	require.EqualValues(t, 1, s.Counters().Idle.Load())
	require.Zero(t, open(t, s).exists("key"))
}

// One that sends a byte now and then is not idle, but its message has an end.
func TestSlowLoris(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.Idle, c.Total = 10*time.Second, 300*time.Millisecond })
	r := open(t, s)
	var err error
	for range 10_000 {
		if _, err = r.nc.Write([]byte{0xd0}[:1]); err != nil {
			break
		}
		if s.Counters().Lost.Load() > 0 {
			return // as nonsense or as late
		}
		time.Sleep(5 * time.Millisecond)
	}
	require.Error(t, err)
}

// A client that does not authenticate is gone after a while, and more of them than may be push out the
// oldest; a client that has the key is served all the time.
func TestUnknownClients(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.Handshake, c.MaxPending = 10*time.Second, 4 })
	var idle []net.Conn
	for range 12 {
		nc, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		defer nc.Close()
		idle = append(idle, nc)
	}
	require.Eventually(t, func() bool { return s.Counters().Crowded.Load() == 8 }, 20*time.Second, time.Millisecond)
	_ = idle[0].SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := idle[0].Read(make([]byte, 1))
	require.Error(t, err)
	open(t, s).exists("a")
	require.Zero(t, s.Counters().Unauthenticated.Load(), "each is refused for one cause")
}

func TestHandshakeHasADeadline(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.Handshake = 100 * time.Millisecond })
	nc, err := net.Dial("tcp", s.Addr().String())
	require.NoError(t, err)
	defer nc.Close()
	_ = nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Eventually(t, func() bool { return s.Counters().Unauthenticated.Load() == 1 }, 20*time.Second, time.Millisecond)
}

func TestTooManyClients(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.MaxClients = 2 })
	a, b := open(t, s), open(t, s)
	r, err := connect(t, s)
	if err == nil {
		r.gone()
	}
	require.Eventually(t, func() bool { return s.Counters().TooManyClients.Load() == 1 }, 20*time.Second, time.Millisecond)
	a.exists("a")
	require.NoError(t, b.nc.Close())
	require.Eventually(t, func() bool { return s.Stats().Clients == 1 }, 20*time.Second, time.Millisecond)
	open(t, s).exists("a")
}

// Another key gets no answer, another format an authenticated refusal.
func TestOtherKeyOtherFormat(t *testing.T) {
	s, _ := serve(t)
	other, err := wire.NewKeyring(func() ([]byte, error) { return []byte("1 ff" + keyText[4:]), nil })
	require.NoError(t, err)
	_, err = connect(t, s, func(c *wire.Config) { c.Keys = other })
	require.ErrorIs(t, err, stream.ErrSilent)
	require.Eventually(t, func() bool { return s.Refusals().Refused(wire.ErrMAC) == 1 }, 20*time.Second, time.Millisecond)
	_, err = connect(t, s, func(c *wire.Config) { c.Blob = []byte{'M', 'W', 'S', 'T', message.Version + 1, 0} })
	require.ErrorIs(t, err, wire.ErrDeclined)
	require.EqualValues(t, 1, s.Counters().OtherVersion.Load())
	_, err = connect(t, s, func(c *wire.Config) { c.Protection = wire.ProtectEncrypt })
	require.ErrorIs(t, err, wire.ErrProtection)
}

// A flush ends when the server says so, whatever its client wants, so that Close does not
// wait for a disk that hangs.
func TestFlushIsBounded(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Total = 100 * time.Millisecond })
	engine.FlushFor = time.Hour
	r := open(t, s)
	start := time.Now()
	r.do(message.Flush, message.Request{DeadlineUs: 1<<32 - 1}, nil)
	require.Less(t, time.Since(start), 20*time.Second)
}

// Drain lets what runs end and is answered, and takes nothing new.
func TestDrain(t *testing.T) {
	s, engine := serve(t)
	engine.FlushFor = 200 * time.Millisecond
	r := open(t, s)
	r.say(message.Flush, message.Request{}, nil)
	require.Eventually(t, func() bool { return s.Stats().Running == 1 }, 20*time.Second, time.Millisecond)
	done := make(chan struct{})
	go func() { s.Drain(time.Now().Add(20 * time.Second)); close(done) }()
	head, _ := r.readReply()
	require.Equal(t, message.OK, message.Status(head.Status))
	r.gone()
	<-done
	_, err := net.Dial("tcp", s.Addr().String())
	require.Error(t, err)
	s.Close()
}

// At its deadline a drain ends what does not end by itself.
func TestDrainHasADeadline(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle, c.Total = time.Hour, time.Hour })
	r := open(t, s)
	said, payload := r.put("key", make([]byte, 1<<20))
	head := wire.Head{Code: message.Put, Request: 9, Extra: said.Encode(make([]byte, message.RequestBytes))}
	frame, err := r.session.Seal(nil, &head, payload)
	require.NoError(t, err)
	_, err = r.nc.Write(append(frame, payload[:1000]...))
	require.NoError(t, err)
	require.Eventually(t, func() bool { open, _, _ := engine.Counts(); return open == 1 }, 20*time.Second, time.Millisecond)
	s.Drain(time.Now().Add(100 * time.Millisecond))
	quiet(t, engine)
}

// WF3: whatever bit of a put is flipped, nothing is done, with the block under the session's digest and without. A
// flipped bit of a block that the digest leaves out is a wrong tag, and the connection stays.
func TestEveryBit(t *testing.T) {
	s, engine := serve(t, func(c *server.Config) { c.Idle = 100 * time.Millisecond })
	probe := open(t, s)
	block := []byte("bytes")
	bits := 8 * (wire.MaxFrameBytes - wire.MaxExtraBytes + message.RequestBytes + 3 + len(block))
	step := 7
	if testing.Short() {
		step = 61
	}
	for _, apart := range []int{0, len(block)} {
		for bit := 0; bit < bits; bit += step {
			r := open(t, s)
			sent := r.sealedPut("key", block, apart)
			require.Equal(t, bits/8, len(sent))
			sent[bit/8] ^= 1 << (bit % 8)
			_, err := r.nc.Write(sent)
			require.NoError(t, err)
			if bit/8 >= len(sent)-apart {
				head, _ := r.readReply()
				require.Equal(t, message.BadTag, message.Status(head.Status))
				require.Zero(t, r.exists("key"))
				require.NoError(t, r.nc.Close())
			} else {
				r.gone()
			}
			require.Zero(t, probe.exists("key"), "bit %d, %d bytes apart", bit, apart)
		}
	}
	quiet(t, engine)
}

// A put with a digest that leaves out some of the key, or more than there is, ends the connection, and stores nothing.
func TestKeysAreCovered(t *testing.T) {
	s, engine := serve(t)
	block := []byte("bytes")
	for _, apart := range []int{len(block) + 1, len(block) + 3} {
		r := open(t, s)
		_, err := r.nc.Write(r.sealedPut("key", block, apart))
		require.NoError(t, err)
		r.gone()
	}
	r := open(t, s)
	require.Zero(t, r.exists("key"))
	_, err := r.nc.Write(r.sealedPut("key", block, len(block)))
	require.NoError(t, err)
	head, _ := r.readReply()
	require.Equal(t, message.OK, message.Status(head.Status))
	quiet(t, engine)
}

// Clients with as many namespaces as may be get no more of them, and know each by its fields.
func TestNamespaces(t *testing.T) {
	s, _ := serve(t)
	r := open(t, s)
	r.mustPut("key", []byte("data"))
	for i := range 15 {
		other := message.Namespace{Model: "m", Salt: fmt.Sprint(i)}
		status, reply := r.do(message.Open, message.Request{}, other.Append(nil))
		require.Equal(t, message.OK, status)
		require.NoError(t, r.opened.Decode(reply))
		require.Zero(t, r.exists("key"))
	}
	status, _ := r.do(message.Open, message.Request{}, (&message.Namespace{Model: "x"}).Append(nil))
	require.Equal(t, message.Quota, status)
	status, reply := r.do(message.Open, message.Request{}, name.Append(nil))
	require.Equal(t, message.OK, status, "it is known")
	require.NoError(t, r.opened.Decode(reply))
	require.Equal(t, 1, r.exists("key"))
}
