package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
)

// complain says that blocks did not fit their tags, and returns which of them are gone.
func (r *raw) complain(keys ...string) []bool {
	r.t.Helper()
	status, b := r.do(message.Bad, message.Request{NumKeys: uint16(len(keys))}, table(keys...))
	require.Equal(r.t, message.OK, status)
	gone := make([]bool, len(keys))
	_, err := message.Found(b, gone)
	require.NoError(r.t, err)
	return gone
}

// A complaint about a block that fits its tag changes nothing. About one that does not it ends
// the block, for everybody.
func TestComplaints(t *testing.T) {
	for what, onDisk := range map[string]bool{"memory": false, "disk": true} {
		t.Run(what, func(t *testing.T) {
			s, e := serve(t)
			e.OnDisk.Store(onDisk)
			r := open(t, s)
			r.mustPut("good", noise(300<<10))
			r.mustPut("spoilt", noise(300<<10))
			e.Spoil("spoilt")
			require.Equal(t, []bool{false, true, true}, r.complain("good", "spoilt", "never put"))
			require.Equal(t, 1, r.exists("good", "spoilt"))
			require.EqualValues(t, 1, s.Counters().Changed.Load())
			require.EqualValues(t, 1, s.Counters().BadReads.Load())
			quiet(t, e)
		})
	}
}

// The session's digest covers the table of a get's reply, and not the blocks: they have tags.
func TestBlocksAreSealedOnce(t *testing.T) {
	s, _ := serve(t)
	r := open(t, s)
	r.mustPut("key", noise(1000))
	r.say(message.Get, message.Request{NumKeys: 1}, table("key"))
	head, _ := r.hear()
	require.EqualValues(t, 1000, head.ApartBytes)
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * i >> 3)
	}
	return b
}
