package node

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

// refusals count what a buffer's sockets have refused. A refused client has no rank yet,
// as a rule, so the counts belong to the buffer.
type refusals struct {
	control wire.Counters
	sockets atomic.Pointer[tcp.Transport] // set once it is open
}

// watch makes a buffer's configuration record what happens between hosts.
func (b *Buffer) watch() {
	b.open.Counters, b.open.Report = &b.refused.control, showLinks
	b.open.FellBack = func(p multihost.Path) {
		if c := b.engine.core(); c != nil { // else the caller of Connect finds it in the paths
			c.RecordFallback(p.Rank, p.Why)
		}
	}
	for i, c := range b.open.Carriers {
		b.open.Carriers[i].Open = func(turn int) (transport.Transport, error) {
			t, err := c.Open(turn)
			if s, ok := t.(*tcp.Transport); ok && err == nil {
				b.refused.sockets.Store(s)
			}
			return t, err
		}
	}
}

// byReason returns the counts of refusals so far, by reason, in words.
func (r *refusals) byReason() map[string]uint64 {
	found := map[string]uint64{}
	add := func(text string, n uint64) {
		if n != 0 {
			found[text] += n
		}
	}
	each := func(why wire.Reason, n uint64) { add(why.Text(), n) }
	r.control.Each(each)
	if s := r.sockets.Load(); s != nil {
		c := s.Counters()
		c.Wire.Each(each)
		add("too many at a time", c.Crowded.Load())
		add("did not show a key in time", c.Late.Load())
		add("ended before it had shown a key", c.Ended.Load())
		add("not expected", c.NotWanted.Load())
		add("genuine, but makes no sense", c.Violations.Load())
	}
	return found
}

// showLinks writes what this rank knows of remote ranks to memory where other processes
// find it.
func showLinks(own domain.Segment, remote []multihost.RemoteRank) {
	area := telemetry.At(own, layout.Record())
	area.SetWallClock(telemetry.WallClock())
	for rank := range rankset.MaxRanks {
		var row telemetry.Link
		if len(remote) > 0 && remote[0].Rank == rank {
			row, remote = rowOf(&remote[0]), remote[1:]
		}
		area.SetLink(rank, &row)
	}
}

func rowOf(f *multihost.RemoteRank) telemetry.Link {
	return telemetry.Link{
		State: int(f.State), Carrier: telemetry.CarrierNumber(f.Carrier),
		SentMessages: f.SentMessages, SentBytes: f.SentBytes,
		ReceivedMessages: f.ReceivedMessages, ReceivedBytes: f.ReceivedBytes,
		Blocked: f.Blocked, Dropped: f.Dropped, Ignored: f.Ignored,
		Credits: f.Credits, MaxCredits: f.MaxCredits,
		Heard: f.Heard, Beats: f.Beats, Ahead: f.Ahead, HasAhead: f.HasAhead,
	}
}

// Paths returns how this rank reaches each rank, as the last rendezvous that was
// installed has it, or as links that have gone over to another carrier since.
func (b *Buffer) Paths() ([]multihost.Path, error) {
	dom, err := b.domain()
	if err != nil {
		return nil, err
	}
	paths := dom.Paths()
	b.engine.describe(paths)
	return paths, nil
}

// RemoteRanks returns what this rank sees of each rank that it reaches by messages, in
// order of rank numbers.
func (b *Buffer) RemoteRanks() ([]multihost.RemoteRank, error) {
	dom, err := b.domain()
	if err != nil {
		return nil, err
	}
	return dom.RemoteRanks(), nil
}
