package wire

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write testdata/vectors.json anew")

// Golden vectors: made here, and computed again from docs/wire.md alone by
// tests/wire/test_vectors.py.
type vectors struct {
	Keyring    string
	TimeNs     int64
	Handshakes []handshakeVector
	Singles    []singleVector
	Datagrams  []datagramVector
}

type handshakeVector struct {
	Protection  uint8
	KeyID       uint32
	ClientNonce string
	ServerNonce string
	ClientID    string
	ServerID    string
	ClientBlob  string
	ServerBlob  string
	Hello       string
	Welcome     string
	Confirm     string
	Refusal     string // of the same hello, because it was declined
	SessionID   uint64
	Exported    string // for the label "vectors"
	Messages    []messageVector
}

// messageVector is a message; byte i of its payload is 7i+3 mod 256.
type messageVector struct {
	FromServer   bool
	Code         uint8
	Reply        bool
	Refused      bool
	Status       uint16
	Request      uint64
	Seq          uint64
	PayloadBytes int
	ApartBytes   uint32
	Extra        string
	Frame        string
	WireBytes    int // what follows the frame
	WireSHA256   string
}

// singleVector is a single request or its reply; byte i of its payload is 7i+3 mod 256.
type singleVector struct {
	KeyID        uint32
	Code         uint8
	Reply        bool
	Status       uint16
	Server       string
	Client       string
	Request      uint64
	PayloadBytes int
	Extra        string
	Frame        string
}

// datagramVector is a signed datagram; byte i of what it says is 7i+3 mod 256.
type datagramVector struct {
	KeyID         uint32
	DatagramBytes int
	Frame         string
}

// counting gives bytes that go up, as nonces.
type counting struct{ next byte }

func (c *counting) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = c.next
		c.next++
	}
	return len(b), nil
}

func makeVectors(t *testing.T) vectors {
	v := vectors{Keyring: testKeyText, TimeNs: epoch.UnixNano()}
	for _, p := range []Protection{ProtectDigest, ProtectEncrypt} {
		v.Handshakes = append(v.Handshakes, makeHandshake(t, p))
	}
	for _, size := range []int{0, 1, 333} {
		v.Singles = append(v.Singles, makeSingle(t, size, false), makeSingle(t, size, true))
	}
	n := newNotary(t)
	for _, size := range []int{0, 37, MaxDatagramBytes} {
		frame := must1(n.Seal(nil, patterned(size)))
		v.Datagrams = append(v.Datagrams, datagramVector{binary.LittleEndian.Uint32(frame[LengthBytes+4:]), size, hex.EncodeToString(frame)})
	}
	return v
}

func patterned(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(7*i + 3)
	}
	return b
}

func makeHandshake(t *testing.T, p Protection) handshakeVector {
	client := testConfig(t, func(c *Config) {
		c.Self, c.Peer, c.Blob, c.Protection, c.Apart, c.rand = idA, idB, []byte("rank 3, epoch 9"), p, true, &counting{0}
	})
	server := testConfig(t, func(c *Config) {
		c.Self, c.Blob, c.Protection, c.Apart, c.rand = idB, []byte("rank 0"), p, true, &counting{100}
	})
	a, b, r := shakeHands(t, client, server)
	exported := a.Export("vectors")
	v := handshakeVector{
		Exported:   hex.EncodeToString(exported[:]),
		Protection: uint8(p), KeyID: a.keyID, SessionID: a.ID(),
		ClientNonce: hex.EncodeToString(r.hello[12:44]), ServerNonce: hex.EncodeToString(r.welcome[44:76]),
		ClientID: hex.EncodeToString(idA[:]), ServerID: hex.EncodeToString(idB[:]),
		ClientBlob: hex.EncodeToString(client.Blob), ServerBlob: hex.EncodeToString(server.Blob),
		Hello: hex.EncodeToString(r.hello), Welcome: hex.EncodeToString(r.welcome), Confirm: hex.EncodeToString(r.confirm),
		Refusal: hex.EncodeToString(declined(t, r.hello, server)),
	}
	for _, s := range []*Session{a, b} {
		for _, size := range []int{0, 1, 333, ChunkBytes + 21} {
			v.Messages = append(v.Messages, makeMessage(t, s, size, 0))
		}
		v.Messages = append(v.Messages, makeMessage(t, s, 2*ChunkBytes, ChunkBytes-5), makeMessage(t, s, 9, 9))
	}
	return v
}

func declined(t *testing.T, hello []byte, server Config) []byte {
	server.Accept = func(Peer) ([]byte, error) { return nil, os.ErrPermission }
	server.Guard = must1(NewGuard(1))
	_, b := handshakes(t, testConfig(t), server)
	_, out, err := b.Step(hello)
	require.ErrorIs(t, err, os.ErrPermission)
	return out
}

func makeMessage(t *testing.T, s *Session, size int, apart uint32) messageVector {
	payload := patterned(size)
	server := s.role == RoleServer
	head := Head{Code: 0x80, Reply: server, Refused: server && size == 0, Status: uint16(size), Request: 1<<40 + uint64(size), ApartBytes: apart, Extra: payload[:min(size, 13)]}
	frame := sealedIn(t, s, &head, payload)
	sent := payload
	if s.protection == ProtectEncrypt {
		e := s.NewEncryptor()
		e.Begin(&head, [][]byte{payload})
		sent = e.Next(make([]byte, 0, s.PayloadWireBytes(&head)))
	}
	return messageVector{
		FromServer: server, Code: head.Code, Reply: head.Reply, Refused: head.Refused, Status: head.Status,
		Request: head.Request, Seq: head.Seq, PayloadBytes: size, ApartBytes: head.ApartBytes, Extra: hex.EncodeToString(head.Extra),
		Frame: hex.EncodeToString(frame), WireBytes: len(sent), WireSHA256: sha256Hex(sent),
	}
}

func makeSingle(t *testing.T, size int, reply bool) singleVector {
	s, payload := newSingles(t), patterned(size)
	head := SingleHead{
		Code: 0x20, Status: uint16(size), KeyID: 7, Server: idB, Client: idA, Request: 1<<40 + uint64(size), Extra: patterned(size % 50),
		PayloadBytes: uint32(size), PayloadSHA256: sha256.Sum256(payload),
	}
	var frame []byte
	if reply {
		frame = must1(s.Seal(nil, &head, payload))
	} else {
		head.Status = 0
		frame = asked(s, head)
	}
	return singleVector{
		head.KeyID, head.Code, reply, head.Status, hex.EncodeToString(idB[:]), hex.EncodeToString(idA[:]), head.Request, size,
		hex.EncodeToString(head.Extra), hex.EncodeToString(frame),
	}
}

func sha256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func sealedIn(t *testing.T, s *Session, head *Head, payload []byte) []byte {
	frame, err := s.Seal(nil, head, payload)
	require.NoError(t, err)
	return frame
}

// WF9: the bytes are the ones that are written down.
func TestWF9Vectors(t *testing.T) {
	const path = "testdata/vectors.json"
	now, err := json.MarshalIndent(makeVectors(t), "", " ")
	require.NoError(t, err)
	now = append(now, '\n')
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, now, 0o644))
	}
	then, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, string(then) == string(now), "the format has changed: raise Version, then go test -update")
}
