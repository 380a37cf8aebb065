package main

// #include "internal.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/multihost"
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
func (b *buffer) watch() {
	b.open.Counters, b.open.Report = &b.refused.control, showLinks
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
func showLinks(own transport.Segment, remote []multihost.RemoteRank) {
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
		State: int(f.State), Carrier: carrierNumber(f.Carrier),
		SentMessages: f.SentMessages, SentBytes: f.SentBytes,
		ReceivedMessages: f.ReceivedMessages, ReceivedBytes: f.ReceivedBytes,
		Blocked: f.Blocked, Dropped: f.Dropped, Ignored: f.Ignored,
		Credits: f.Credits, MaxCredits: f.MaxCredits,
		Heard: f.Heard, Beats: f.Beats, Ahead: f.Ahead, HasAhead: f.HasAhead,
	}
}

func carrierNumber(name string) int {
	switch name {
	case "tcp":
		return C.MW_LINK_TCP
	case "verbs":
		return C.MW_LINK_VERBS
	}
	return 0
}

// remoteStats are the part of mw_buffer_stats about ranks of other hosts.
type remoteStats struct {
	Links             []linkStats       `json:"links"`
	Refused           map[string]uint64 `json:"refused"`
	Ballots           uint64            `json:"num_ballots"`
	Agreed            uint64            `json:"num_agreed"`
	Ended             uint64            `json:"num_ended"`
	Broken            uint64            `json:"num_broken"`
	TimesUnresponsive uint64            `json:"num_unresponsive"`
	Missing           string            `json:"missing_carriers"`
	WallClock         int64             `json:"wall_clock_ns"`
}

type linkStats struct {
	Rank             int    `json:"rank"`
	Carrier          string `json:"carrier"`
	State            string `json:"state"`
	Why              string `json:"why"`
	SentMessages     uint64 `json:"num_messages_sent"`
	SentBytes        uint64 `json:"num_bytes_sent"`
	ReceivedMessages uint64 `json:"num_messages_received"`
	ReceivedBytes    uint64 `json:"num_bytes_received"`
	Blocked          uint64 `json:"num_blocked"`
	Dropped          uint64 `json:"num_dropped"`
	Ignored          uint64 `json:"num_ignored"`
	Reconnects       uint64 `json:"num_reconnects"`
	Credits          int    `json:"num_credits"`
	MaxCredits       int    `json:"num_max_credits"`
	Heard            int64  `json:"heard_ns"`
	Beats            uint64 `json:"num_beats"`
	Ahead            int64  `json:"clock_ahead_ns"`
}

// domain is nil until the buffer is connected, and after a join is given up or the buffer
// is closed.
func (b *buffer) domain() (*multihost.Domain, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, b.closedError()
	case b.dom == nil:
		return nil, errUnconnected(b.id)
	}
	return b.dom, nil
}

func (b *buffer) remoteStats() (remoteStats, error) {
	dom, err := b.domain()
	if err != nil {
		return remoteStats{}, err
	}
	t := dom.Totals()
	s := remoteStats{
		Links: []linkStats{}, Refused: b.refused.byReason(), Ballots: t.Ballots, Agreed: t.Agreed,
		Ended: t.Ended, Broken: t.Broken, TimesUnresponsive: t.TimesUnresponsive, Missing: t.Missing, WallClock: telemetry.WallClock(),
	}
	for _, f := range dom.RemoteRanks() {
		s.Links = append(s.Links, linkStats{
			Rank: f.Rank, Carrier: f.Carrier, State: f.State.String(), Why: dom.WhyNot(f.Rank),
			SentMessages: f.SentMessages, SentBytes: f.SentBytes,
			ReceivedMessages: f.ReceivedMessages, ReceivedBytes: f.ReceivedBytes,
			Blocked: f.Blocked, Dropped: f.Dropped, Ignored: f.Ignored, Reconnects: f.Reconnects,
			Credits: f.Credits, MaxCredits: f.MaxCredits, Heard: f.Heard, Beats: f.Beats, Ahead: f.Ahead,
		})
	}
	return s, nil
}

//export mwiBufferLinks
func mwiBufferLinks(id uint64, out *C.mw_link_t, capacity uint32, count *C.uint32_t) C.mw_status_t {
	return observeAll(id, func(b *buffer, _ observed) error {
		if capacity == 0 {
			return invalid("capacity is 0, allowed 1 and more")
		}
		dom, err := b.domain()
		if err != nil {
			return err
		}
		remote := dom.RemoteRanks()
		remote = remote[:min(len(remote), int(capacity))]
		size := uintptr(out.size) // the size of the caller's elements; checked by the shim
		for i := range remote {
			element := unsafe.Add(unsafe.Pointer(out), uintptr(i)*size)
			putLink(unsafe.Slice((*byte)(element), size), &remote[i])
		}
		*count = C.uint32_t(len(remote))
		return nil
	})
}

// putLink writes an element as far as the caller has room.
func putLink(to []byte, f *multihost.RemoteRank) {
	l := C.mw_link_t{
		size: C.uint32_t(len(to)), rank: C.uint32_t(f.Rank), carrier: C.uint32_t(carrierNumber(f.Carrier)), state: C.uint32_t(f.State),
		num_messages_sent: C.uint64_t(f.SentMessages), num_bytes_sent: C.uint64_t(f.SentBytes),
		num_messages_received: C.uint64_t(f.ReceivedMessages), num_bytes_received: C.uint64_t(f.ReceivedBytes),
		num_blocked: C.uint64_t(f.Blocked), num_dropped: C.uint64_t(f.Dropped), num_ignored: C.uint64_t(f.Ignored),
		num_credits: C.uint32_t(f.Credits), num_max_credits: C.uint32_t(f.MaxCredits),
		heard_ns: C.int64_t(f.Heard), num_beats: C.uint64_t(f.Beats), clock_ahead_ns: C.int64_t(f.Ahead),
		num_reconnects: C.uint64_t(f.Reconnects),
	}
	clear(to[copy(to, unsafe.Slice((*byte)(unsafe.Pointer(&l)), unsafe.Sizeof(l))):])
}
