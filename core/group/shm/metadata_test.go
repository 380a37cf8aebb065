package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

func sampleInfo() Info {
	return Info{
		ABIVersion: 3, Rank: 1, NumRanks: 4, PID: 4711, ControlBytes: 4096,
		Nonce: [nonceBytes]byte{1, 2, 3}, Identity: [nonceBytes]byte{4}, Survivor: true, Params: []byte("hello"), Socket: "moewire-x",
	}
}

func TestMetadataRoundTrip(t *testing.T) {
	want := sampleInfo()
	got, err := ParseMetadata(want.marshal())
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

// resum replaces the checksum, to reach the checks behind it.
func resum(b []byte) []byte {
	body := b[:len(b)-domain.ChecksumBytes]
	return domain.AppendChecksum(bytes.Clone(body))
}

func TestParseMetadataErrors(t *testing.T) {
	info := sampleInfo()
	good := info.marshal()
	alter := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"empty", "truncated: 0 bytes", nil},
		{"short", "truncated", good[:20]},
		{"one byte missing", "truncated: 91 of 92 bytes", good[:len(good)-1]},
		{"one byte more", "1 trailing bytes", append(bytes.Clone(good), 0)},
		{"magic", "does not begin with", alter(0, 'X')},
		{"version", "format version 1", alter(4, 1)},
		{"altered", "checksum", alter(30, 1)},
		{"altered checksum", "checksum", alter(len(good)-1, good[len(good)-1]^1)},
		{"rank", "rank 4 of 4", resum(alter(12, 4))},
		{"no ranks", "number of ranks is 0", resum(alter(16, 0))},
		{"too many ranks", fmt.Sprintf("number of ranks is %d", rankset.MaxRanks+1), resum(alter(16, rankset.MaxRanks+1))},
		{"control", "control region of", resum(alter(24, 1))},
		{"huge control", "control region of", resum(alter(31, 0x80))},
		{"survivor", "survivor is 2", resum(alter(64, 2))},
		{"survivor's second byte", "survivor is 257", resum(alter(65, 1))},
		{"params", "do not fit", resum(alter(66, 200))},
		{"name", "do not fit", resum(alter(68, 200))},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseMetadata(c.data)
			if !errors.Is(err, domain.ErrMetadata) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestParseMetadataEveryByteCounts(t *testing.T) {
	info := sampleInfo()
	good := info.marshal()
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0x10
		if _, err := ParseMetadata(b); !errors.Is(err, domain.ErrMetadata) {
			t.Errorf("byte %d altered: %v", i, err)
		}
	}
}

func FuzzParseMetadata(f *testing.F) {
	info := sampleInfo()
	f.Add(info.marshal())
	f.Add(info.marshal()[:30])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > domain.ChecksumBytes { // else the checksum hides everything
			if _, err := ParseMetadata(resum(b)); err == nil {
				b = resum(b)
			}
		}
		got, err := ParseMetadata(b)
		if err != nil {
			if !errors.Is(err, domain.ErrMetadata) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if !bytes.Equal(got.marshal(), b) {
			t.Fatalf("%x is read as %+v, which is written as %x", b, got, got.marshal())
		}
	})
}

// TestConnectChecksMetadata also shows that such a Connect uses nothing up.
func TestConnectChecksMetadata(t *testing.T) {
	listeners, all := openAll(t, 3, 64)
	change := func(r int, f func(*Info)) [][]byte {
		out := append([][]byte(nil), all...)
		info, err := ParseMetadata(all[r])
		if err != nil {
			t.Fatal(err)
		}
		f(&info)
		out[r] = info.marshal()
		return out
	}
	_, others := openAll(t, 3, 64)
	for _, c := range []struct {
		name string
		all  [][]byte
		is   error
		want []string
	}{
		{"too few", all[:2], transport.ErrMismatch, []string{"2 ranks", "3"}},
		{"truncated", [][]byte{all[0], all[1], all[2][:50]}, domain.ErrMetadata, []string{"rank 2:", "truncated"}},
		{"order", [][]byte{all[0], all[2], all[1]}, domain.ErrMetadata, []string{"rank 1:", "rank 2"}},
		{"world", change(1, func(i *Info) { i.NumRanks = 4 }), transport.ErrMismatch, []string{"rank 1:", "number of ranks is 4", "it is 3"}},
		{"ABI", change(2, func(i *Info) { i.ABIVersion = 9 }), transport.ErrMismatch, []string{"rank 2:", "ABI version is 9", "it is 7"}},
		{"control", change(2, func(i *Info) { i.ControlBytes = 128 }), transport.ErrMismatch, []string{"rank 2:", "128", "64"}},
		{"nonce", change(2, func(i *Info) { i.Nonce = listeners[1].info.Nonce }), domain.ErrMetadata, []string{"rank 2:", "nonce", "rank 1"}},
		{"identity", change(2, func(i *Info) { i.Identity = listeners[1].info.Identity }), domain.ErrMetadata, []string{"rank 2:", "identity", "rank 1"}},
		{"own absent", [][]byte{nil, all[1], all[2]}, domain.ErrMetadata, []string{"rank 0:", "absent"}},
		{"own", [][]byte{others[0], all[1], all[2]}, domain.ErrMetadata, []string{"rank 0:", "own entry"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := listeners[0].Connect(c.all, time.Second)
			if !errors.Is(err, c.is) {
				t.Fatalf("got %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
	domains, errs := connectAll(listeners, all, 20*time.Second)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, d := range domains {
		d.Close()
	}
}

func TestOpenRefusesBadConfig(t *testing.T) {
	for _, c := range []Config{
		{Rank: 0, NumRanks: 0, ControlBytes: 8},
		{Rank: 0, NumRanks: rankset.MaxRanks + 1, ControlBytes: 8},
		{Rank: 2, NumRanks: 2, ControlBytes: 8},
		{Rank: -1, NumRanks: 2, ControlBytes: 8},
		{Rank: 0, NumRanks: 1, ControlBytes: 0},
		{Rank: 0, NumRanks: 1, ControlBytes: 12},
		{Rank: 0, NumRanks: 1, ControlBytes: 8, Params: make([]byte, maxParamsBytes+1)},
	} {
		if l, err := Open(c); err == nil {
			l.Close()
			t.Errorf("%+v was accepted", c)
		}
	}
}

func TestMessageRoundTrip(t *testing.T) {
	want := message{kind: kindAbort, flags: 1, rank: 5, from: [16]byte{1}, to: [16]byte{2}, text: "why"}
	got, err := parseMessage(want.marshal())
	if err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	b := want.marshal()
	binary.LittleEndian.PutUint16(b[4:], 2)
	if _, err := parseMessage(b); err == nil {
		t.Error("a message of another version was read")
	}
	if _, err := parseMessage(b[:messageBytes-1]); err == nil {
		t.Error("a truncated message was read")
	}
}
