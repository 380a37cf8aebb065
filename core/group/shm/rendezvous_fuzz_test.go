package shm

import (
	"bytes"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
)

// aloneOfTwo is rank 0 of two, of which rank 1 does not come.
func aloneOfTwo(f *testing.F) *hostDomain {
	l, err := Open(Config{Rank: 0, NumRanks: 2, ControlBytes: 64, ABIVersion: 7})
	if err != nil {
		f.Fatal(err)
	}
	dom, err := l.Connect([][]byte{l.Metadata(), nil}, 10*time.Second)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { dom.Close() })
	return dom.(*hostDomain)
}

// seedMetadata gives what a rank 1 might bring: fresh and from an earlier
// rendezvous, whose process is there or is not, whole, cut and altered.
func seedMetadata(f *testing.F) {
	l, err := Open(Config{Rank: 1, NumRanks: 2, ControlBytes: 64, ABIVersion: 7, Params: []byte("params")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { l.Close() })
	info, err := ParseMetadata(l.Metadata())
	if err != nil {
		f.Fatal(err)
	}
	survivor, absent := info, info
	survivor.Survivor = true
	absent.Socket = "moewire-nobody"
	for _, i := range []Info{info, survivor, absent} {
		b := i.marshal()
		f.Add(b)
		f.Add(b[:len(b)/2])
		for at := range b {
			f.Add(append(append(bytes.Clone(b[:at]), b[at]^0x41), b[at+1:]...))
		}
	}
}

// FuzzReconnect brings any bytes as another rank's metadata to the rendezvous of a new
// rank and of a survivor. No process answers them, so that both end with an error, before
// long, and the survivor's domain is what it was.
func FuzzReconnect(f *testing.F) {
	seedMetadata(f)
	dom := aloneOfTwo(f)
	dom.Control(0).Word(8).Store(4711)
	members, present := dom.Members().Load(), dom.Present()
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > domain.ChecksumBytes { // else the checksum hides everything
			b = resum(b)
		}
		begin := time.Now()
		meetAsNew(t, 0, b)
		if info, err := ParseMetadata(b); err == nil {
			info.Rank = 0 // of two ranks the higher one dials
			meetAsNew(t, 1, info.marshal())
		}
		meetAsSurvivor(t, dom, b)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("the rendezvous took %v", took)
		}
		if dom.Members().Load() != members || dom.Present() != present || dom.Control(0).Word(8).Load() != 4711 {
			t.Error("the domain is not what it was")
		}
	})
}

const fuzzDeadline = 2 * time.Millisecond

func meetAsNew(t *testing.T, rank int, b []byte) {
	l, err := Open(Config{Rank: rank, NumRanks: 2, ControlBytes: 64, ABIVersion: 7})
	if err != nil {
		t.Fatal(err)
	}
	all := [][]byte{b, b}
	all[rank] = l.Metadata()
	dom, err := l.Connect(all, fuzzDeadline)
	switch {
	case err == nil && len(b) > 0:
		t.Error("a rendezvous with nobody succeeded")
	case err == nil:
		dom.Close()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func meetAsSurvivor(t *testing.T, dom *hostDomain, b []byte) {
	l, err := Relist(dom, []byte("again"))
	if err != nil {
		t.Fatal(err)
	}
	change, err := l.Reconnect([][]byte{l.Metadata(), b}, fuzzDeadline)
	switch {
	case err == nil && len(b) > 0:
		t.Error("a rendezvous with nobody succeeded")
	case err == nil:
		change.Abort()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
