package chaos

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

// place says where the ranks of a group stand.
type place int

const (
	allLocal  place = iota // all share memory
	allRemote              // each on a host of its own
	split                  // the lower half on one host, the rest on another
)

func (p place) String() string { return [...]string{"local", "remote", "split"}[p] }

// host names the one that a rank is on.
func (p place) host(rank, ranks int) string {
	switch p {
	case allRemote:
		return fmt.Sprint("host ", rank)
	case split:
		return fmt.Sprint("host ", rank/((ranks+1)/2))
	}
	return "host"
}

// connectIn is how long a rendezvous may take. Connections over TCP are many, and
// both sides of each prove that they know the key.
func (p place) connectIn() time.Duration {
	if p == allLocal {
		return 400 * time.Millisecond
	}
	return 1500 * time.Millisecond
}

// deadline of calls. Remote ranks have more to do in a step. Where many of them
// share few processors, a rank that takes long is not late.
func (p place) deadline(ranks int) time.Duration {
	if p != allLocal && ranks > 4 {
		return 3 * deadline
	}
	return deadline
}

// unresponsiveness timeout: longer than what a busy machine keeps a rank from its
// processor, and shorter than by default, so that many bounds pass.
const bound = 500 * time.Millisecond

const key = "1 6d6f65776972652d6368616f732d7465737473206f6e6c792c206e6f20736563"

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// reach is how a rank reaches the others. With equal seeds it is equal: with
// small rings messages are many and short of room.
func (r *rank) reach(params []byte) (multihost.Config, error) {
	keys, err := wire.NewKeyring(func() ([]byte, error) { return []byte(key), nil })
	protection := wire.ProtectDigest
	if r.seed>>3&1 == 1 {
		protection = wire.ProtectEncrypt
	}
	cfg := multihost.Config{
		Shm: shm.Config{
			Rank: r.num, NumRanks: r.ranks, ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params,
		},
		Keys: keys, Listen: loopback, Host: r.place.host(r.num, r.ranks), Bound: bound,
		Link:  link.Config{RingBytes: link.MinRingBytes << (4 * (r.seed >> 4 & 3)), NumMessages: 2 << (2 * (r.seed >> 6 & 3))},
		Words: []int64{layout.WaitsFor(), layout.Beat(), layout.Quiesced()}, Moments: []int64{layout.Since()},
	}
	cfg.Carriers = []multihost.Carrier{{Setting: multihost.TCP, Open: func(turn int) (transport.Transport, error) {
		t, err := tcp.Open(tcp.Config{Listen: []netip.AddrPort{loopback}, Keyring: keys, Protection: protection})
		if err != nil {
			return nil, err
		}
		return tappedCarrier{t, r.trap}, nil
	}}}
	return cfg, err
}

// checkPaths: the ranks are where they are thought to be.
func (r *rank) checkPaths(d *multihost.Domain) error {
	own := r.place.host(r.num, r.ranks)
	for _, p := range d.Paths() {
		want := "tcp"
		switch {
		case p.Rank == r.num:
			want = "self"
		case !d.Present().Has(p.Rank):
			want = ""
		case r.place.host(p.Rank, r.ranks) == own:
			want = "shm"
		}
		if p.Carrier != want {
			return fmt.Errorf("rank %d is reached over %q (%s), want %q", p.Rank, p.Carrier, p.Why, want)
		}
	}
	return nil
}
