package verbs

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// onPorts is one rank with a link over a group of ports.
type onPorts struct {
	group          *Group
	set            *link.Set
	link           *link.Link
	sent, received int
}

func newOnPorts(t *testing.T, f *fakeLib, rank int, nics ...NIC) *onPorts {
	config, err := Config{
		GID: GIDChoice{ByIndex: true, Index: 3}, NumEndpoints: 8, SendDepth: 16, RecvDepth: 32,
	}.withDefaults()
	require.NoError(t, err)
	e, cfg := &onPorts{}, link.Config{RingBytes: 1 << 12, NumMessages: 6}
	e.group, err = openGroup(f.lib, config, nics)
	require.NoError(t, err)
	memory := func(n int64) (domain.Segment, error) {
		_, slab, err := inproc.New(1, 8)[0].AddSlab(n)
		return slab, err
	}
	poll := link.NewPoller(e.group, func() {})
	e.link, err = link.NewLink(poll, 1-rank, rand.Uint32(), cfg, memory)
	require.NoError(t, err)
	e.set = link.NewSet(cfg, memory, func(int) error { return nil }, 0)
	t.Cleanup(func() {
		require.NoError(t, e.link.Close(time.Now().Add(testTimeout)))
		require.NoError(t, poll.Close())
	})
	return e
}

// pairOnPorts connects two ranks with two ports each: fake0 and fake1 are the
// first one's.
func pairOnPorts(t *testing.T, f *fakeLib) (ends [2]*onPorts) {
	ends[0] = newOnPorts(t, f, 0, NIC{"fake0", 1}, NIC{"fake1", 1})
	ends[1] = newOnPorts(t, f, 1, NIC{"fake2", 1}, NIC{"fake3", 1})
	failed := make(chan error, 1)
	offers := [2][]byte{ends[0].link.Offer(), ends[1].link.Offer()}
	go func() { failed <- ends[0].link.Connect(offers[1], time.Now().Add(testTimeout)) }()
	require.NoError(t, ends[1].link.Connect(offers[0], time.Now().Add(testTimeout)))
	require.NoError(t, <-failed)
	for r, e := range ends {
		links := make([]*link.Link, 2)
		links[1-r] = e.link
		e.set.Put(links)
		controlMessages, stop, stopped := make(chan []byte, 1000), make(chan bool), make(chan bool)
		go func() {
			defer close(stopped)
			for {
				select {
				case b := <-controlMessages:
					ends[1-r].link.Deliver(b)
				case <-stop:
					return
				}
			}
		}()
		t.Cleanup(func() { close(stop); <-stopped })
		e.link.Reconnect(link.Reconnecting{Within: testTimeout, Send: func(b []byte) bool {
			select {
			case controlMessages <- append([]byte(nil), b...):
				return true
			default:
				return false
			}
		}})
	}
	return ends
}

// talk moves num messages each way, and calls meanwhile once between two of them.
func talk(t *testing.T, rng *rand.Rand, ends [2]*onPorts, num int, meanwhile func()) {
	t.Helper()
	goal, at := ends[0].received+num, rng.IntN(2*num)
	for until, numTaken := time.Now().Add(testTimeout), 0; ends[0].received < goal || ends[1].received < goal; {
		moved := false
		for r, e := range ends {
			if e.sent < goal && e.say(t, 1-r) {
				moved = true
			}
			if e.takeMessage(t, 1-r) {
				if moved = true; numTaken == at {
					meanwhile()
				}
				numTaken++
			}
			require.NoError(t, e.link.Err())
		}
		if !moved {
			require.True(t, time.Now().Before(until), "nothing moves: %v, %v", ends[0].link.WhyNot(), ends[1].link.WhyNot())
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// say sends the next message if there is room.
func (e *onPorts) say(t *testing.T, to int) bool {
	message := textOf(e.sent)
	b, err := e.set.Reserve(to, int64(len(message)))
	if err != nil {
		require.ErrorIs(t, err, transport.ErrWouldBlock)
		return false
	}
	copy(b, message)
	require.NoError(t, e.set.Post(to, int64(len(message))))
	e.sent++
	return true
}

// takeMessage takes a message if there is one: it must be the next, and whole.
func (e *onPorts) takeMessage(t *testing.T, from int) bool {
	message := e.set.Next(from)
	if message == nil {
		return false
	}
	require.Equal(t, textOf(e.received), message, "message %d", e.received)
	e.set.Release(from)
	e.received++
	return true
}

// textOf is a message: its number, and as many bytes as that says.
func textOf(number int) []byte {
	b := make([]byte, 8+number*37%1000)
	for i := range b {
		b[i] = byte(number + i)
	}
	binary.LittleEndian.PutUint64(b, uint64(number))
	return b
}

// on waits until the link is up over a port.
func (e *onPorts) on(t *testing.T, device string) {
	t.Helper()
	soon(t, func() bool {
		require.NoError(t, e.link.Err())
		_, now := e.link.Carrier()
		return now == device && !e.link.Broken()
	})
}

// retry makes ports that could not be opened be tried again at once.
func (e *onPorts) retry() {
	e.group.changing.Lock()
	defer e.group.changing.Unlock()
	for _, m := range e.group.members {
		m.triedAt = time.Time{}
	}
}

// TestLinkMovesToAnotherPort: a link whose port or device fails goes on over
// another one, and comes back when that one fails and the first is there again.
// Whenever that happens every message arrives once, in its order.
func TestLinkMovesToAnotherPort(t *testing.T) {
	for name, way := range map[string]struct{ fail, repair func(f *fakeLib, device int) }{
		"port":   {(*fakeLib).unplug, (*fakeLib).plug},
		"device": {(*fakeLib).remove, (*fakeLib).insert},
	} {
		for i := range testenv.NumSeeds(t, 5) {
			t.Run(fmt.Sprint(name, " ", i), func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				moveAround(t, rand.New(rand.NewPCG(seed, 0)), way.fail, way.repair)
			})
		}
	}
}

func moveAround(t *testing.T, rng *rand.Rand, fail, repair func(f *fakeLib, device int)) {
	f := newFakes(t, 4)
	f.moves = true
	ends := pairOnPorts(t, f)
	for round := range 4 { // there, back, and once more
		from, to := round%2, 1-round%2
		ends[0].on(t, fmt.Sprintf("fake%d/1", from))
		talk(t, rng, ends, 20, func() { fail(f, from) })
		ends[0].on(t, fmt.Sprintf("fake%d/1", to))
		repair(f, from)
		ends[0].retry()
		talk(t, rng, ends, 20, func() {})
	}
	ends[1].on(t, "fake2/1") // nothing has happened there
	for _, e := range ends {
		require.EqualValues(t, 160, e.link.Stats().ReceivedMessages)
		require.GreaterOrEqual(t, e.link.Stats().Reconnects, uint64(4))
	}
}

// TestLinkOfNoPort: a link fails at once when no port is left, also one that was
// never open, and is not tried until its bound.
func TestLinkOfNoPort(t *testing.T) {
	f := newFakes(t, 4)
	f.moves = true
	ends := pairOnPorts(t, f)
	talk(t, rand.New(rand.NewPCG(1, 0)), ends, 20, func() {})
	f.setPort(1, libibverbs.PortActive-1)
	begin := time.Now()
	f.unplug(0)
	soon(t, func() bool { return ends[0].link.Err() != nil })
	require.Less(t, time.Since(begin), testTimeout/2)
	require.ErrorContains(t, ends[0].link.Err(), "device is down: fake0/1: fake0/1: port is down; fake1/1: ")
	soon(t, func() bool { return ends[1].link.Err() != nil })
}
