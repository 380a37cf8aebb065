package message

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/tag"
)

var update = flag.Bool("update", false, "write testdata again")

// vectors are examples of everything in docs/wire.md about the store. tests/wire computes
// them from there.
type vectors struct {
	Codes      map[string]uint8
	Statuses   map[string]uint8
	Hello      string
	Namespaces []namespaceVector
	Requests   []requestVector
	Opened     openedVector
	Parts      []partVector
	Entries    []entryVector
	Found      []foundVector
	Listed     listedVector
	Keys       keysVector
	Tags       []tagVector
	Share      shareVector
}

type namespaceVector struct {
	Fields        [numFields]string
	Bytes, Digest string
}

type requestVector struct {
	Request
	Tag     string
	Encoded string
}

type openedVector struct {
	Opened
	Boot    string
	TagKey  string
	Encoded string
}

type partVector struct {
	Part
	Bytes string
}

type entryVector struct {
	Status   uint8
	Length   uint32
	Tag      string
	Handle   uint64
	Get      string
	LookedUp string
	Place    uint64
	Placed   string
}

type shareVector struct {
	ArenaBytes, HoldUs uint64
	Shared             string
	Secret, Name       string
	Namespace          string
	Server, Client     string // proofs
}

type foundVector struct {
	Number int
	Found  []bool
	Bytes  string
}

type listedVector struct {
	Cursor string
	Keys   []string
	Bytes  string
}

type keysVector struct {
	Keys  []string
	Bytes string
}

// tagVector is the tag of a block; byte i of it is 7i+3 mod 256.
type tagVector struct {
	Namespace, Key string // hexadecimal
	BlockBytes     int
	Tag            string
}

func makeVectors() vectors {
	v := vectors{Codes: map[string]uint8{}, Statuses: map[string]uint8{}, Hello: hex.EncodeToString(Hello())}
	for c := range 256 {
		if name := CodeName(Code(c)); name != "" {
			v.Codes[name] = uint8(c)
		}
	}
	for s := range NumStatuses {
		v.Statuses[s.String()] = uint8(s)
	}
	for _, n := range []Namespace{{}, {"model", "weights", "bf16", "LBHNC", "64", "tp 2 of 0", "ünïcode"}} {
		one := namespaceVector{Bytes: hex.EncodeToString(n.Append(nil)), Digest: digestOf(&n)}
		for i, f := range n.fields() {
			one.Fields[i] = *f
		}
		v.Namespaces = append(v.Namespaces, one)
		v.Tags = append(v.Tags, makeTags(&n)...)
	}
	for _, r := range []Request{{}, sampleRequest(), *bouncedPut()} {
		v.Requests = append(v.Requests, requestVector{r, hex.EncodeToString(r.Tag[:]), hex.EncodeToString(r.Encode(make([]byte, RequestBytes)))})
	}
	o := sampleOpened()
	v.Opened = openedVector{o, hex.EncodeToString(o.Boot[:]), hex.EncodeToString(o.TagKey[:]), hex.EncodeToString(o.Encode(make([]byte, OpenedBytes)))}
	for _, p := range []Part{{First: 1, NumKeys: 300}, {First: 511, NumKeys: 1, Last: true, Offset: 3 * PartBytes}} {
		v.Parts = append(v.Parts, partVector{p, hex.EncodeToString(p.Encode(make([]byte, PartExtraBytes)))})
	}
	for i, e := range []Entry{{Status: Miss}, sampleEntry()} {
		place := uint64(i) * 0x1112131415
		v.Entries = append(v.Entries, entryVector{
			uint8(e.Status), e.Bytes, hex.EncodeToString(e.Tag[:]), e.Handle,
			hex.EncodeToString(e.Append(nil)), hex.EncodeToString(e.AppendLookup(nil)),
			place, hex.EncodeToString(e.AppendPlaced(nil, place)),
		})
	}
	for _, f := range [][]bool{{true}, {true, true, false, true, false, false, false, false, true, false, true}} {
		v.Found = append(v.Found, foundVector{len(f) / 2, f, hex.EncodeToString(AppendFound(nil, len(f)/2, f))})
	}
	keys := []string{"a", "another key"}
	table := [][]byte{[]byte(keys[0]), []byte(keys[1])}
	v.Keys = keysVector{keys, hex.EncodeToString(AppendKey(AppendKey(nil, table[0]), table[1]))}
	v.Listed = listedVector{"next", keys, hex.EncodeToString(AppendListed(nil, []byte("next"), table))}
	v.Share = makeShare()
	return v
}

// shareWhere is a name that the kernel gives a network namespace.
const shareWhere = "8f14e45f-ceea-467f-9575-6e3b1d0c2a77/net:[4026531840]"

func makeShare() shareVector {
	s := Shared{ArenaBytes: 0x123456789a, HoldUs: 30_000_000}
	secret, name := [32]byte{1, 2, 3}, [NameBytes]byte{4, 5}
	proof := func(side byte) string {
		p := ShareProof(secret, side, name, shareWhere)
		return hex.EncodeToString(p[:])
	}
	return shareVector{
		ArenaBytes: s.ArenaBytes, HoldUs: s.HoldUs, Shared: hex.EncodeToString(s.Append(nil)),
		Secret: hex.EncodeToString(secret[:]), Name: hex.EncodeToString(name[:]), Namespace: shareWhere,
		Server: proof(ProofServer), Client: proof(ProofClient),
	}
}

func digestOf(n *Namespace) string {
	d := n.Digest()
	return hex.EncodeToString(d[:])
}

func makeTags(n *Namespace) (list []tagVector) {
	tagger := tag.New(sampleOpened().TagKey, n.Digest())
	for _, size := range []int{0, 1, 333, tag.ChunkBytes, tag.ChunkBytes + 1, 2*tag.ChunkBytes + 21} {
		key, block := []byte{byte(size), 0xff, 'k'}, make([]byte, size)
		for i := range block {
			block[i] = byte(7*i + 3)
		}
		t := tagger.Of(key, block)
		list = append(list, tagVector{digestOf(n), hex.EncodeToString(key), size, hex.EncodeToString(t[:])})
	}
	return list
}

// WF9: the bytes are the ones that are written down.
func TestWF9Vectors(t *testing.T) {
	const path = "testdata/vectors.json"
	now, err := json.MarshalIndent(makeVectors(), "", " ")
	require.NoError(t, err)
	now = append(now, '\n')
	if *update {
		require.NoError(t, os.WriteFile(path, now, 0o644))
	}
	then, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, string(then) == string(now), "the format has changed: raise Version, then go test -update")
}
