package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// exchange is a request with its reply, over a session whose frames have a digest.
type exchange struct {
	name   string
	ask    func(c *Client) any
	answer any // over a good cable
	miss   any // where a bit of the request or of the reply is flipped
}

var flippedBlock = []byte("a block of some bytes")

// exchanges are all that a client asks of a server that has a block under "there" and none under "new".
var exchanges = []exchange{
	{"put", func(c *Client) any { return first(c.Put([]byte("new"), flippedBlock, nil)) }, true, false},
	{"get", func(c *Client) any { return string(first(c.Get([]byte("there")))) }, string(flippedBlock), ""},
	{"exists", func(c *Client) any { return first(c.Exists(there)) }, []bool{true, false}, []bool{false, false}},
	{"delete", func(c *Client) any { return first(c.Delete(there)) }, 1, 0},
	{"touch", func(c *Client) any { return first(c.Do(Request{Op: message.Touch, Keys: there})).Err }, nil, nil},
	{"pin", func(c *Client) any { return first(c.Pin(there, time.Minute)) }, []bool{true, false}, []bool{false, false}},
	{"lookup", func(c *Client) any { return numLeases(c) }, 1, 0},
	{"list", func(c *Client) any { return listed(c) }, []string{"there"}, []string(nil)},
	{"stats", func(c *Client) any { return numStats(c) }, 1, 0},
	{"flush", func(c *Client) any { return c.Flush(time.Second) == nil }, true, false},
}

var there = [][]byte{[]byte("there"), []byte("gone")}

func first[T any](v T, _ error) T { return v }

func numLeases(c *Client) (n int) {
	leases, _ := c.Lookup(there, 0, 0)
	for _, l := range leases {
		if l != nil {
			n++
		}
	}
	return n
}

func numStats(c *Client) (n int) {
	for _, text := range c.Stats(0) {
		if text != nil {
			n++
		}
	}
	return n
}

func listed(c *Client) (keys []string) {
	_ = c.List(nil, 0, func(key []byte) bool { keys = append(keys, string(key)); return true })
	return keys
}

// frames is a server with its cable.
type frames struct {
	*testing.T
	s       *server.Server
	clean   *Client
	clients int // of this server
}

// TestSomeBitsOfAFrame flips bits of each request and of its reply, one at a time: the client learns nothing wrong, the server
// does nothing that was not asked, and the side that got the bit counts it.
func TestSomeBitsOfAFrame(t *testing.T) { flipBits(t, 149) }

// TestEveryBitOfAFrame flips all of them.
func TestEveryBitOfAFrame(t *testing.T) {
	testenv.InAll(t)
	flipBits(t, 1)
}

// flipBits flips one of so many bits.
func flipBits(t *testing.T, step int64) {
	for i := range exchanges {
		x := &exchanges[i]
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			f := &frames{T: t}
			f.serve()
			requestBytes, replyBytes := f.measure(x)
			require.Positive(t, requestBytes)
			require.Positive(t, replyBytes)
			src := newRand(t)
			for bit := src.Int64N(step); bit < 8*requestBytes; bit += step {
				f.flip(x, true, bit)
			}
			for bit := src.Int64N(step); bit < 8*replyBytes; bit += step {
				f.flip(x, false, bit)
			}
		})
	}
}

// serve begins a server. One knows the handshakes of a minute, as many as may be.
func (f *frames) serve() {
	f.s, _ = serve(f.T)
	f.clean, f.clients = dial(f.T, one(f.s)), 0
}

// prepared is a client behind a cable, of a server that has one block.
func (f *frames) prepared(timeout time.Duration) (*Client, *relay) {
	if f.clients++; f.clients == 500 {
		require.NoError(f, f.clean.Close())
		f.s.Close()
		f.serve()
	}
	_, err := f.clean.Delete([][]byte{[]byte("new")})
	require.NoError(f, err)
	mustPut(f, f.clean, "there", flippedBlock)
	c, r := relayed(f.T, f.s, timeout, by(CarrierTCP), func(c *Config) { c.ProbeMin, c.ProbeMax = time.Hour, time.Hour })
	back(f, c)
	return c, r
}

// mostBytes is how much of a reply is flipped: that to stats is long, and each time a little longer or shorter.
const mostBytes = 512

// measure does an exchange over a good cable, and says how long its messages are.
func (f *frames) measure(x *exchange) (request, reply int64) {
	c, r := f.prepared(testTimeout)
	request, reply = r.asked.sent.Load(), r.replies.sent.Load()
	require.Equal(f, x.answer, x.ask(c), x.name)
	request, reply = r.asked.sent.Load()-request, r.replies.sent.Load()-reply
	require.NoError(f, c.Close())
	return request, min(reply, mostBytes)
}

func (f *frames) flip(x *exchange, request bool, bit int64) {
	timeout := testTimeout
	if bit < 8*wire.LengthBytes {
		timeout = 100 * time.Millisecond // the rest of a longer message never comes
		if !request && (x.name == "put" || x.name == "delete") {
			timeout = time.Second // the server has done it by then, also on a busy machine
		}
	}
	c, r := f.prepared(timeout)
	w := &r.replies
	if request {
		w = &r.asked
	}
	r.mask.Store(1 << (bit % 8))
	w.flip.Store(w.sent.Load() + bit/8 + 1)
	before := f.counted(c, request)
	require.Equal(f, x.miss, x.ask(c), "%s, request %v, bit %d", x.name, request, bit)
	require.Eventually(f, func() bool { return f.counted(c, request) > before || f.ended(c, x, request, bit) }, testTimeout, time.Millisecond, "%s, request %v, bit %d is not counted", x.name, request, bit)
	require.NoError(f, c.Close())
	f.unchanged(x, request, bit)
}

// counted is what the side that reads has refused.
func (f *frames) counted(c *Client, request bool) (n uint64) {
	from, tags := &c.counts.Frames, c.counts.BadTags.Load()
	if request {
		from, tags = f.s.Refusals(), f.s.Counters().BadPuts.Load()
	}
	from.Each(func(_ wire.Reason, k uint64) { n += k })
	return n + tags
}

// ended reports whether a bit is one of those that end the connection before the whole message has come, which the client counts: of
// a length, so that the rest of the message never comes, and of the table of blocks in front of these.
func (f *frames) ended(c *Client, x *exchange, request bool, bit int64) bool {
	if bit < 8*wire.LengthBytes {
		return c.counts.Late.Load() > 0
	}
	inTable := x.name == "get" && !request && bit >= 8*frameOfPart && bit < 8*(frameOfPart+message.EntryBytes)
	return inTable && c.counts.Broken.Load() > 0
}

// unchanged looks at what the server has. A request whose reply was flipped was done.
func (f *frames) unchanged(x *exchange, request bool, bit int64) {
	got, err := f.clean.Get([]byte("new"))
	require.NoError(f, err)
	if done := x.name == "put" && !request; done {
		require.Equal(f, flippedBlock, got, "bit %d", bit)
	} else {
		require.Nil(f, got, "%s, bit %d", x.name, bit)
	}
	got, err = f.clean.Get([]byte("there"))
	require.NoError(f, err)
	if done := x.name == "delete" && !request; done {
		require.Nil(f, got, "bit %d", bit)
	} else {
		require.Equal(f, flippedBlock, got, "%s, bit %d", x.name, bit)
	}
}
