package multihost

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/wire"
)

// desk is a rank's own control region, which says when a word is looked at.
type desk struct {
	domain.Domain
	domain.Segment
	words [2]atomic.Uint64
	look  func(off int64)
}

func (d *desk) Control(int) domain.Segment { return d }

func (d *desk) Word(off int64) *atomic.Uint64 {
	d.look(off)
	return &d.words[off/8]
}

// ear is a link.Handler that keeps what it hears.
type ear struct {
	up    chan int
	heard chan uint64 // the first word of each beat
}

func newEar() *ear { return &ear{make(chan int, 1), make(chan uint64, 10)} }

func (e *ear) Up(rank int)                   { e.up <- rank }
func (e *ear) Ended(int, link.Ending, error) {}
func (e *ear) Tick()                         {}
func (e *ear) Crashed(error)                 {}
func (e *ear) Received(_ int, m []byte)      { e.heard <- binary.LittleEndian.Uint64(m[1+beatHead:]) }

// pair connects two ranks; rank 0 waits for rank 1 to be up.
func pair(t *testing.T, ears [2]*ear) (controls [2]*link.Controls) {
	keys := wire.GenerateKeyring()
	var listeners [2]*link.Listener
	for r := range listeners {
		var err error
		listeners[r], err = link.Listen(loopback)
		require.NoError(t, err)
	}
	ids := [2]wire.PeerID{{1}, {2}}
	addrs := [2]link.Participant{{ID: ids[0], Addr: listeners[0].Addr()}, {ID: ids[1], Addr: listeners[1].Addr()}}
	for r := range listeners {
		var err error
		controls[r], err = link.StartControls(link.ControlConfig{Rank: r, ID: ids[r], Keys: keys, Tick: time.Hour},
			listeners[r], map[int]link.Participant{1 - r: addrs[1-r]}, ears[r])
		require.NoError(t, err)
		t.Cleanup(func() { _ = controls[r].Close() })
	}
	<-ears[0].up
	return controls
}

// TestBeatsKeepTheirOrder: a beat that has read old words is not queued behind one with
// newer words: a rank that leaves says with its last beat that it is quiesced.
func TestBeatsKeepTheirOrder(t *testing.T) {
	ears := [2]*ear{newEar(), newEar()}
	controls := pair(t, ears)
	own, done := &desk{}, make(chan bool)
	v := &view{
		cfg: &Config{Words: []int64{0, 8}, Clock: monotonic}, local: own, participants: &participants{},
		agreement: newAgreement(0, rankset.Of(0, 1), testRules, time.Now()),
	}
	v.controls.Store(controls[0])
	first := true
	own.look = func(off int64) {
		if off != 8 || !first {
			return
		}
		first = false
		own.words[0].Store(1) // the tick's beat has read it before
		leave := func() { v.sendBeat(nil); close(done) }
		if v.beating.TryLock() { // nothing holds up a rank that leaves
			v.beating.Unlock()
			leave()
			return
		}
		go leave()
	}
	v.sendDueBeat()
	<-done
	require.Zero(t, <-ears[1].heard)
	require.EqualValues(t, 1, <-ears[1].heard)
}
