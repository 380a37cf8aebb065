package client

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// What the cable flips in the reply to a get is a miss and ends the connection, wherever it is. Of the frame and the
// table, which say what block it is, the session's digest tells; of the block its tag, and the server that has looked
// at its own.
func TestFlippedBits(t *testing.T) {
	s, _ := serve(t)
	data := noise(newRand(t), 100<<10)
	mustPut(t, dial(t, one(s)), "key", data)
	table := frameOfPart
	block := table + message.EntryBytes
	places := []int64{block + 7001, block + 50_001, block + 100<<10 - 1}
	for at := range block + 30 {
		places = append(places, at)
	}
	for _, at := range places {
		c, r := relayed(t, s, 500*time.Millisecond, by(CarrierTCP))
		back(t, c)
		changed := s.Counters().Changed.Load()
		r.replies.flip.Store(r.replies.sent.Load() + at + 1)
		got, err := c.Get([]byte("key"))
		require.NoError(t, err)
		require.Nil(t, got, at)
		require.Eventually(t, func() bool { return c.counts.Broken.Load() == 1 }, testTimeout, time.Millisecond, "%d: %+v", at, &c.counts)
		inBlock := uint64(0)
		if at >= block {
			inBlock = 1
		}
		require.Equal(t, inBlock, c.counts.BadTags.Load(), at)
		require.Equal(t, inBlock, c.counts.Changed.Load(), at)
		require.Equal(t, changed+inBlock, s.Counters().Changed.Load(), at)
		require.NoError(t, c.Close())
	}
	mustGet(t, dial(t, one(s)), "key", data) // the server has looked, and kept it
	require.Zero(t, s.Counters().BadReads.Load())
}

// frameOfPart is how long the frame of a part is.
const frameOfPart = int64(wire.MaxFrameBytes - wire.MaxExtraBytes + message.PartExtraBytes)

// What a medium flips is a miss, too, and the server hears of it.
func TestSpoiltBlock(t *testing.T) {
	s, engine := serve(t)
	c := dial(t, one(s))
	mustPut(t, c, "key", noise(newRand(t), 100<<10))
	engine.Spoil("key")
	got, err := c.Get([]byte("key"))
	require.NoError(t, err)
	require.Nil(t, got)
	require.EqualValues(t, 1, c.counts.BadTags.Load())
	require.Eventually(t, func() bool { _, _, bads := engine.Counts(); return bads == 1 }, testTimeout, time.Millisecond)
	found, err := c.Exists([][]byte{[]byte("key")})
	require.NoError(t, err)
	require.False(t, found[0])
	require.EqualValues(t, 1, s.Counters().BadReads.Load())
}

// A block that another one has replaced since it was read was not changed on its way: the connection stays, and so
// does the other block.
func TestReplacedWhileRead(t *testing.T) {
	s, engine := serve(t)
	c := dial(t, one(s), by(CarrierTCP))
	src := newRand(t)
	old, data := noise(src, 100<<10), noise(src, 100<<10)
	mustPut(t, c, "key", old)
	leases, err := c.Lookup([][]byte{[]byte("key")}, 0, 0)
	require.NoError(t, err)
	engine.Spoil("key")
	n, err := c.Delete([][]byte{[]byte("key")})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	mustPut(t, c, "key", data)
	ok, err := leases[0].Read([][]byte{make([]byte, len(old))})
	require.NoError(t, err)
	require.False(t, ok)
	require.Eventually(t, func() bool { return s.Counters().Requests(message.Bad) == 1 && s.Stats().Running == 0 }, testTimeout, time.Millisecond)
	mustGet(t, c, "key", data)
	require.Zero(t, c.counts.Broken.Load())
	require.Zero(t, c.counts.Changed.Load())
	leases[0].Release()
}

// A server that takes long to look at a block, as a disk may, is not silent: the connection stays.
func TestComplaintTakesLong(t *testing.T) {
	s, engine := serve(t)
	engine.OnDisk.Store(true)
	hold, reads := make(chan struct{}), atomic.Int64{}
	end := sync.OnceFunc(func() { close(hold) })
	defer end()
	engine.OnRead = func(int64) error {
		if reads.Add(1) == 2 { // the first one is for the get
			<-hold
		}
		return nil
	}
	c := dial(t, one(s), by(CarrierTCP), func(c *Config) { c.Timeout = 30 * time.Millisecond })
	do := func(r Request) Completion {
		r.Keys, r.Timeout = [][]byte{[]byte("key")}, testTimeout
		done, err := c.Do(r)
		require.NoError(t, err)
		return done
	}
	require.True(t, do(Request{Op: message.Put, Buffers: [][][]byte{{noise(newRand(t), 100<<10)}}}).OK[0])
	engine.Spoil("key")
	require.False(t, do(Request{Op: message.Get}).OK[0])
	require.Eventually(t, func() bool { return reads.Load() == 2 }, testTimeout, time.Millisecond)
	time.Sleep(100 * time.Millisecond) // more than a get may take
	require.True(t, do(Request{Op: message.Exists}).OK[0])
	require.Zero(t, c.counts.Broken.Load())
	end()
	require.Eventually(t, func() bool { return !do(Request{Op: message.Exists}).OK[0] }, testTimeout, time.Millisecond)
	require.Zero(t, c.counts.Broken.Load())
}

// A complaint names the tag that the server has said, has no deadline of a client's, and is answered in two minutes.
func TestComplaintHasAnEnd(t *testing.T) {
	ring, said := keys(t, keyA), tag.Tag{7, 8, 9}
	synctest.Test(t, func(t *testing.T) {
		e, p := message.Entry{Bytes: 5, Tag: said}, message.Part{NumKeys: 1, Last: true}
		var asked message.Request
		s := &liar{
			head:    wire.Head{Code: message.Get, Reply: true, Extra: p.Encode(make([]byte, message.PartExtraBytes))},
			payload: append(e.Append(nil), "block"...), keys: ring,
			heard: func(head wire.Head) bool {
				if head.Code == message.Bad {
					require.NoError(t, asked.Decode(head.Code, head.Extra, head.PayloadBytes))
				}
				return head.Code != message.Bad
			},
		}
		c, err := Open(Config{Servers: []string{"liar"}, Keys: ring, Carrier: CarrierTCP, Dial: s.dial, ProbeMin: time.Hour, ProbeMax: time.Hour})
		require.NoError(t, err)
		got, err := c.Get([]byte("key"))
		require.NoError(t, err)
		require.Nil(t, got)
		time.Sleep(time.Minute)
		require.Zero(t, c.counts.Broken.Load())
		require.Equal(t, message.Request{NumKeys: 1, Tag: said}, asked)
		time.Sleep(61 * time.Second)
		require.EqualValues(t, 1, c.counts.Broken.Load())
		require.NoError(t, c.Close())
		time.Sleep(time.Minute) // the other side has ended
	})
}

// The session's digest leaves out the block of a put, which has a tag, and nothing of other requests.
func TestWhatADigestLeavesOut(t *testing.T) {
	for _, n := range []int{0, 1, 1000, 100 << 10} {
		apart := map[message.Code]uint32{}
		s := &liar{
			head: wire.Head{Code: message.Put, Reply: true}, keys: keys(t, keyA),
			heard: func(head wire.Head) bool { apart[head.Code] = head.ApartBytes; return true },
		}
		c, err := Open(Config{Servers: []string{"liar"}, Keys: s.keys, Carrier: CarrierTCP, Dial: s.dial, Timeout: testTimeout, ProbeMin: time.Hour, ProbeMax: time.Hour})
		require.NoError(t, err)
		mustPut(t, c, "key", make([]byte, n))
		require.NoError(t, c.Close())
		require.Equal(t, map[message.Code]uint32{message.Open: 0, message.Put: uint32(n)}, apart)
	}
}

// No verb shows the secrets of a connection.
func TestSecretsAreNotPrinted(t *testing.T) {
	l := &link{secret: [32]byte{171}, invited: [32]byte{205}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		require.Equal(t, "client.link", fmt.Sprintf(verb, l), verb)
	}
}
