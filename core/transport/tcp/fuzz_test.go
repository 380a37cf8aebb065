package tcp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// FuzzAddress: what Connect is given comes from elsewhere.
func FuzzAddress(f *testing.F) {
	a := address{id: 7, token: token{1, 2}, numSockets: 2, addrs: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}}
	f.Add(a.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddress(b)
		if err != nil {
			return
		}
		if got := a.encode(); !bytes.Equal(got, b) {
			// Only IPv4 in its two spellings may differ; the second is stable.
			again, err := decodeAddress(got)
			if err != nil || !bytes.Equal(again.encode(), got) {
				t.Fatalf("%x becomes %x", b, got)
			}
		}
	})
}

// FuzzJoin: what the dialler says of itself.
func FuzzJoin(f *testing.F) {
	j := join{to: token{1}, num: 1, sendDepth: 1, recvDepth: 1}
	f.Add(j.encode())
	j.attempt = 7
	f.Add(j.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if j, ok := decodeJoin(b); ok && !bytes.Equal(j.encode(), b) {
			t.Fatalf("%x becomes %x", b, j.encode())
		}
	})
}

// FuzzMessage: what a genuine header says.
func FuzzMessage(f *testing.F) {
	var extra [extraBytes]byte
	f.Add(codeSend, int64(0), extra[:])
	f.Fuzz(func(t *testing.T, code uint8, n int64, b []byte) {
		m, ok := decodeMessage(&wire.Head{Code: code, PayloadBytes: n, Extra: b})
		if !ok {
			return
		}
		m.encode(&extra)
		if !bytes.Equal(extra[:], b) {
			t.Fatalf("%x becomes %x", b, extra)
		}
	})
}

// FuzzPeer plays messages that are genuine and say anything. The endpoint must
// not panic, touch memory that it was not given, or complete anything twice.
func FuzzPeer(f *testing.F) {
	const each = 16
	f.Add(bytes.Repeat([]byte{codeSend, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 10, 0, 0, 0}, 2))
	f.Add([]byte{codeRead, 0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{codeWriteImm, 1, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 10, 0, 0, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		x := newImpostor(t)
		defer x.close()
		for n := 0; len(script) >= each && n < 8; n++ {
			b := script[:each]
			script = script[each:]
			m := message{
				code: b[0], op: uint64(b[1]), recv: uint64(b[2]), ack: uint64(b[3] >> 4), credit: uint64(b[3] & 15),
				off: uint64(binary.LittleEndian.Uint16(b[6:])), total: uint32(binary.LittleEndian.Uint16(b[8:])),
				at: uint32(binary.LittleEndian.Uint16(b[10:])), status: transport.Status(b[14]),
			}
			if b[4]&1 == 1 {
				m.key = x.region.Remote().Key
			}
			x.say(m, make([]byte, binary.LittleEndian.Uint16(b[12:])))
		}
		_ = x.conn.Close()
		ended := map[uint64]bool{}
		for end := time.Now().Add(soon); len(ended) < 2; {
			done, _ := x.poll()
			for _, c := range done {
				if ended[c.ID] {
					t.Fatalf("two completions of %d", c.ID)
				}
				ended[c.ID] = true
			}
			if time.Now().After(end) {
				t.Fatal("receives never end")
			}
		}
	})
}
