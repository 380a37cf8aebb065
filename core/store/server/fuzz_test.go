package server_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// FuzzServer: whatever a client that has the key says, every request gets one reply, its
// context is free again, and the server serves the next one. An input is a list of messages: code,
// length of the header, header, length of the payload, payload.
func FuzzServer(f *testing.F) {
	s, probe := newLocal(f)
	put, data := probe.put("key", []byte("some data"))
	f.Add(messages(nil, message.Put, put.Encode(make([]byte, message.RequestBytes)), data))
	bounced := message.Request{Flags: message.FlagPlace, KeyBytes: 3, Bytes: 9, Offset: 64, Tag: put.Tag}
	f.Add(messages(nil, message.Put, bounced.Encode(make([]byte, message.RequestBytes)), []byte("key")))
	get := message.Request{NumKeys: 1}
	f.Add(messages(messages(nil, message.Get, get.Encode(make([]byte, message.RequestBytes)), table1),
		message.Lookup, get.Encode(make([]byte, message.RequestBytes)), table1))
	allocate := message.Request{KeyBytes: 3, Bytes: 3}
	commit := message.Request{Handle: 1 << 16}
	write := message.Request{Handle: 1 << 16, Bytes: 3}
	f.Add(messages(messages(messages(nil, message.Allocate, allocate.Encode(make([]byte, message.RequestBytes)), []byte("key")),
		message.Write, write.Encode(make([]byte, message.RequestBytes)), []byte("abc")),
		message.Commit, commit.Encode(make([]byte, message.RequestBytes)), nil))
	f.Add(messages(nil, message.Open, (&message.Request{}).Encode(make([]byte, message.RequestBytes)), name.Append(nil)))
	f.Add(messages(nil, message.List, (&message.Request{KeyBytes: 1}).Encode(make([]byte, message.RequestBytes)), []byte("k")))
	r, _ := probe.bouncing()
	f.Fuzz(func(t *testing.T, in []byte) {
		r.t, probe.t = t, t
		for range 32 {
			var code message.Code
			var extra, payload []byte
			if code, extra, payload, in = nextMessage(in); code == 0 {
				break
			}
			if code == message.Flush {
				continue // takes as long as it says
			}
			r.last++
			head := wire.Head{Code: code, Request: r.last, Extra: extra}
			require.NoError(t, r.out.Append(&head, [][]byte{payload}))
			require.NoError(t, r.out.Flush())
			for last := false; !last; {
				head, _ := r.readReply()
				require.Equal(t, r.last, head.Request)
				var p message.Part
				last = code != message.Get || head.Refused || p.Decode(head.Extra, message.MaxKeys) != nil || len(head.Extra) > 4 && head.Extra[4] == 1
			}
		}
		probe.exists("key")
		require.Zero(t, s.Counters().Lost.Load())
		require.LessOrEqual(t, s.Stats().Running, 1, "its last reply may just be written")
	})
}

func messages(dst []byte, code message.Code, extra, payload []byte) []byte {
	dst = append(dst, code, byte(len(extra)))
	dst = append(dst, extra...)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(payload)))
	return append(dst, payload...)
}

// nextMessage reads one, as far as there is something; code 0 is the end.
func nextMessage(in []byte) (code message.Code, extra, payload, rest []byte) {
	if len(in) < 2 {
		return 0, nil, nil, nil
	}
	code, rest = in[0], in[2:]
	n := min(int(in[1]), len(rest))
	extra, rest = rest[:n], rest[n:]
	if len(rest) < 2 {
		return code, extra, nil, nil
	}
	n = int(binary.LittleEndian.Uint16(rest))
	rest = rest[2:]
	n = min(n, len(rest))
	return code, extra, rest[:n], rest[n:]
}
