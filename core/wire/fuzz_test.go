package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// fixed makes the same session in every process that fuzzes, so that what one
// has found is the same for the others.
func fixed(c *Config) { c.rand = zeros{} }

// FuzzOpen: whatever bytes come, nothing panics, and what is accepted is a
// frame that the peer has made, byte for byte. The second half of the corpus
// is signed, so that the checks behind the tag are reached.
func FuzzOpen(f *testing.F) {
	client, server := sessions(f, fixed)
	frame := sealed(f, client, Head{Code: 1, Extra: []byte("extra")}, []byte("payload"))
	f.Add(frame, false, []byte("payload"))
	f.Add(frame, true, []byte("payload"))
	f.Add(frame[:len(frame)-1], true, []byte(nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, false, []byte(nil))
	digest := server.NewDigest()
	f.Fuzz(func(t *testing.T, data []byte, sign bool, payload []byte) {
		data = clone(data)
		if sign && len(data) >= LengthBytes+TrailerBytes {
			setLength(data)
			client.out.sign(data, int64(signedAt(data)))
		}
		server.window = window{}
		head, err := server.OpenHead(data)
		if err != nil {
			if server.window != (window{}) {
				t.Fatal("a refused frame has changed the window")
			}
			return
		}
		if !sign && !bytes.Equal(data, frame) {
			t.Fatal("a frame that nobody has signed was accepted")
		}
		sameHead(t, client, head, data)
		digest.Begin(&head)
		digest.Write(payload)
		if digest.Check() == nil && head.PayloadBytes != int64(len(payload)) {
			t.Fatal("a payload of another length was accepted")
		}
	})
}

// sameHead encodes what was decoded and wants the same bytes.
func sameHead(t *testing.T, client *Session, head Head, frame []byte) {
	var again [HeadBytes]byte
	putHead(again[:], &head, client)
	if !bytes.Equal(again[:], frame[LengthBytes:headBytes]) {
		t.Fatal("decoding and encoding has changed the header")
	}
	if !bytes.Equal(head.Extra, frame[headBytes:len(frame)-TrailerBytes]) {
		t.Fatal("Extra is another")
	}
}

// FuzzHandshake: whatever a server is told, it does not panic, does not
// finish, and answers only what is signed.
func FuzzHandshake(f *testing.F) {
	config := testConfig(f, fixed)
	_, _, r := shakeHands(f, config, config)
	for _, frame := range [][]byte{r.hello, r.welcome, r.confirm, r.hello[:50], {0, 0, 0, 0}} {
		f.Add(frame, true)
		f.Add(frame, false)
	}
	f.Fuzz(func(t *testing.T, data []byte, sign bool) {
		config := config
		config.Guard = must1(NewGuard(1))
		a, b := handshakes(t, config, config)
		a.Start()
		data = clone(data)
		if sign && len(data) >= minHelloFrameBytes {
			setLength(data)
			a.handshakeSigner().sign(data, int64(signedAt(data)))
		}
		for _, h := range []*Handshake{a, b} {
			n, out, err := h.Step(data)
			if h.Done() && !sign && h == b || n > len(data) || n > maxHelloFrameBytes {
				t.Fatal("finished, or took too much")
			}
			if out != nil && !sign && !bytes.HasPrefix(data, r.hello) && !bytes.HasPrefix(data, r.welcome) {
				t.Fatal("answered what nobody has signed")
			}
			if err != nil && h.Need() != 0 {
				t.Fatal("wants more after an error")
			}
		}
	})
}

// FuzzDecrypt: nothing but what was encrypted is decrypted.
func FuzzDecrypt(f *testing.F) {
	client, server := sessions(f, encrypting, fixed)
	payload := noise(1, ChunkBytes+100)
	head := Head{Code: 1}
	sealed, err := client.Seal(nil, &head, payload)
	must(err)
	e := client.NewEncryptor()
	e.Begin(&head, [][]byte{payload})
	wire := e.Next(make([]byte, 0, EncryptedBytes(int64(len(payload)))))
	f.Add(wire, uint16(7))
	f.Add(wire[:100], uint16(1))
	f.Add(sealed, uint16(1))
	d := server.NewDecryptor()
	f.Fuzz(func(t *testing.T, data []byte, portion uint16) {
		into := make([]byte, len(payload))
		must(d.Begin(&head, [][]byte{into[:50], into[50:]}))
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(portion)+1)
			if d.Write(rest[:n]) != nil {
				break
			}
			rest = rest[n:]
		}
		if good := d.Check() == nil; good != bytes.Equal(data, wire) || good && !bytes.Equal(into, payload) {
			t.Fatal("accepted what was not encrypted, or the reverse")
		}
	})
}

// FuzzSingle: what is accepted is what a holder of the key has signed, once.
func FuzzSingle(f *testing.F) {
	s := newSingles(f)
	f.Add(asked(s, SingleHead{Code: 0x20, Server: idB, Client: idA, Request: 9, Extra: []byte("extra")}), false)
	f.Add(asked(s, SingleHead{Code: 0x06, Client: idA, Request: 10}), true)
	f.Fuzz(func(t *testing.T, data []byte, sign bool) {
		s, data := newSingles(t), clone(data)
		own := sign && len(data) >= LengthBytes+SingleHeadBytes+TrailerBytes
		if own {
			setLength(data)
			binary.LittleEndian.PutUint32(data[LengthBytes+4:], 7)
			s.ring.signer(7).sign(data, epoch.UnixNano())
		}
		head, err := s.Open(data)
		if err != nil {
			return
		}
		if !own && !bytes.Equal(asked(s, head), data) {
			t.Fatal("accepted what nobody has signed")
		}
		if _, err = s.Open(data); !errors.Is(err, ErrReplay) {
			t.Fatalf("accepted twice: %v", err)
		}
	})
}

// FuzzKeys: no text makes a ring of weak keys, or panics.
func FuzzKeys(f *testing.F) {
	f.Add([]byte(testKeyText))
	for _, bad := range badKeyTexts {
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		k, err := parseKeys(clone(data), nil)
		if err != nil {
			return
		}
		if k.secrets[k.current] == nil || len(k.secrets) > MaxNumKeys {
			t.Fatal("a ring without its current key, or of too many")
		}
		for _, secret := range k.secrets {
			if bytes.Count(secret[:], secret[:1]) == KeyBytes {
				t.Fatal("a weak key")
			}
		}
	})
}
