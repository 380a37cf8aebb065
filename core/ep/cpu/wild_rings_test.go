package cpu_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/link"
)

// wildHosts are where the ranks of a group with rings are. Without the two ranks of a link the
// rest has a quorum.
var wildHosts = []string{"a", "a", "b", "c", "c"}

// wildRings is small, so that a random word often lies in a message.
const wildRings = 1 << 13

// wildRing is memory of a link: what arrives there, or is put together there. The hardware of
// the peer can write to it at any time.
type wildRing struct{ domain.Segment }

func (s wildRing) ReadAt(to []byte, off int64) (int, error) {
	binary.LittleEndian.PutUint64(to, s.Word(off).Load())
	return 8, nil
}

func (s wildRing) WriteAt(from []byte, off int64) (int, error) {
	s.Word(off).Store(binary.LittleEndian.Uint64(from))
	return 8, nil
}

// newWildHosts is newWildWorld for ranks of several hosts.
func newWildHosts(t testing.TB, cfg ep.Config) *wildWorld {
	w := &wildWorld{timeout: 1500 * time.Millisecond}
	kern := func() device.Kernels { return &watchedKernels{kernels.NewReference(), w} }
	w.world = connectHosts(t, wildHosts, cfg, kern, func(group *multihost.Config) {
		group.Link, group.Bound = link.Config{RingBytes: wildRings, NumMessages: 4}, wildTimeout
	})
	return w
}

// inRing is a word of the messages between the target and its peer, often of a head.
func (c *wildCase) inRing() (wildMemory, int64, string) {
	to, from := c.w.doms[c.target].Remote().(domain.RemoteRings).Rings(c.peer)
	i := c.r.IntN(2)
	off := 8 * c.r.Int64N(20)
	if c.r.IntN(2) == 0 {
		off = 8 * c.r.Int64N(wildRings/8)
	}
	return wildRing{[]domain.Segment{to, from}[i]}, off, fmt.Sprintf("a message %s rank %d at rank %d, byte %d",
		[]string{"to", "from"}[i], c.peer, c.target, off)
}

// ofLink: a message has no seal of its own. Rows, weights, tokens and parameters may be wrong at
// both ends of the link, and nowhere else.
func (c *wildCase) ofLink(b *blow, _ int64) bool {
	b.costs = 1<<c.target | 1<<c.peer
	b.disagree, b.late = b.costs, true
	return true
}

func newWildRingCase(t testing.TB, seed uint64) *wildCase {
	r := rand.New(rand.NewPCG(seed, 3))
	n := len(wildHosts)
	c := &wildCase{
		seed: seed, r: r, s: randomShape(r, n), target: r.IntN(n), delay: time.Duration(r.IntN(8000)) * time.Microsecond, more: r.IntN(100),
		classes: []wildClass{{"rings", (*wildCase).inRing, (*wildCase).ofLink}},
	}
	for c.peer = c.target; wildHosts[c.peer] == wildHosts[c.target]; c.peer = r.IntN(n) {
	}
	switch r.IntN(5) {
	case 0:
		c.s.fp8, c.s.hidden = true, castBlock
	case 1:
		c.flat = true
	case 2:
		c.s.preReduce = true
	}
	c.w = newWildHosts(t, ep.Config{NumBytes: 16 << 20, NumSlots: wildSlots, Deterministic: r.IntN(3) == 0})
	return c
}

// TestWildRings overwrites random words of messages between hosts, before and after they are
// checked: no crash, no hang, no panic. Ranks at neither end have right results, for as long as
// they are in the group.
func TestWildRings(t *testing.T) {
	playWild(t, newWildRingCase, 20*time.Second)
}
