package node

import (
	"runtime/metrics"

	"github.com/moewire/moewire/core/telemetry"
)

// Stats are a buffer's totals since Connect. docs/observability.md describes the keys of
// their JSON.
type Stats struct {
	telemetry.Stats
	Imbalance float64     `json:"expert_imbalance"` // fullest local expert over the mean; 0 without rows
	Remote    RemoteStats `json:"remote"`
	GoObjects uint64      `json:"go_heap_allocations"`
	GoBytes   uint64      `json:"go_heap_bytes"`
}

// RemoteStats are the part of Stats about ranks of other hosts.
type RemoteStats struct {
	Links             []LinkStats       `json:"links"`
	Refused           map[string]uint64 `json:"refused"` // by reason
	Ballots           uint64            `json:"num_ballots"`
	Agreed            uint64            `json:"num_agreed"`
	Ended             uint64            `json:"num_ended"`
	Broken            uint64            `json:"num_broken"`
	TimesUnresponsive uint64            `json:"num_unresponsive"`
	Missing           string            `json:"missing_carriers"`
	WallClock         int64             `json:"wall_clock_ns"`
}

// LinkStats are what this rank knows of one remote rank.
type LinkStats struct {
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

// Observe returns what a buffer says of itself, also when a defect has ended it.
func (b *Buffer) Observe() (Observed, error) { return b.connected() }

// Stats returns the buffer's totals. The counts of the Go heap are the process's.
func (b *Buffer) Stats() (Stats, error) {
	c, err := b.connected()
	if err != nil {
		return Stats{}, err
	}
	own, err := c.Stats()
	if err != nil {
		return Stats{}, err
	}
	remote, err := b.remoteStats()
	if err != nil {
		return Stats{}, err
	}
	heap := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(heap)
	return Stats{
		Stats: own, Imbalance: imbalance(own.Experts), Remote: remote,
		GoObjects: heap[0].Value.Uint64(), GoBytes: heap[1].Value.Uint64(),
	}, nil
}

func imbalance(rows []uint64) float64 {
	most, sum := uint64(0), uint64(0)
	for _, n := range rows {
		most, sum = max(most, n), sum+n
	}
	if sum == 0 {
		return 0
	}
	return float64(most) * float64(len(rows)) / float64(sum)
}

func (b *Buffer) remoteStats() (RemoteStats, error) {
	dom, err := b.domain()
	if err != nil {
		return RemoteStats{}, err
	}
	t := dom.Totals()
	s := RemoteStats{
		Links: []LinkStats{}, Refused: b.refused.byReason(), Ballots: t.Ballots, Agreed: t.Agreed,
		Ended: t.Ended, Broken: t.Broken, TimesUnresponsive: t.TimesUnresponsive, Missing: t.Missing, WallClock: telemetry.WallClock(),
	}
	for _, f := range dom.RemoteRanks() {
		s.Links = append(s.Links, LinkStats{
			Rank: f.Rank, Carrier: f.Carrier, State: f.State.String(), Why: dom.WhyNot(f.Rank),
			SentMessages: f.SentMessages, SentBytes: f.SentBytes,
			ReceivedMessages: f.ReceivedMessages, ReceivedBytes: f.ReceivedBytes,
			Blocked: f.Blocked, Dropped: f.Dropped, Ignored: f.Ignored, Reconnects: f.Reconnects,
			Credits: f.Credits, MaxCredits: f.MaxCredits, Heard: f.Heard, Beats: f.Beats, Ahead: f.Ahead,
		})
	}
	return s, nil
}
