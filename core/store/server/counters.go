package server

import (
	"encoding/json"
	"sync/atomic"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// Counters count by reason. Safe for concurrent use.
type Counters struct {
	Accepted, Crowded, AcceptFailed             atomic.Uint64 // connections
	Unauthenticated, OtherVersion               atomic.Uint64
	TooManyClients, Lost, Idle                  atomic.Uint64 // Idle: of those lost, by a client that did not read or write on
	Hits, Misses, BytesIn, BytesOut             atomic.Uint64
	Capped, Expired, BadPuts, BadReads, Changed atomic.Uint64 // BadReads: readers found a wrong tag; Changed: it was right here
	ReadFailed                                  atomic.Uint64
	requests                                    [message.NumCodes]atomic.Uint64
	replies                                     [message.NumStatuses]atomic.Uint64
	unknownCodes                                atomic.Uint64
}

// Requests is how many requests of a code came.
func (c *Counters) Requests(code message.Code) uint64 { return c.requests[code].Load() }

// Replies is how many requests were answered with a status; of those for several keys, as a
// whole.
func (c *Counters) Replies(s message.Status) uint64 { return c.replies[s].Load() }

// Counters are the server's own.
func (s *Server) Counters() *Counters { return &s.counters }

// Refusals are those of handshakes and frames, by reason.
func (s *Server) Refusals() *wire.Counters { return &s.refusals }

// Stats is what a server says of itself.
type Stats struct {
	Storage  uint8             `json:"storage"` // as in Config
	Clients  int               `json:"clients"`
	Running  int               `json:"requests_running"`
	Counts   map[string]uint64 `json:"counts"`
	Requests map[string]uint64 `json:"requests"`
	Replies  map[string]uint64 `json:"replies"`
	Refused  map[string]uint64 `json:"refused_frames"`
	Store    any               `json:"store,omitempty"`
}

// Stats counts by reason, and asks the engine.
func (s *Server) Stats() Stats {
	st := Stats{
		Counts: s.counters.named(), Requests: map[string]uint64{}, Replies: map[string]uint64{}, Refused: map[string]uint64{},
		Running: s.contexts.Stats().Leased, Clients: len(s.all()), Storage: s.cfg.Storage,
	}
	for code := range s.counters.requests {
		if name := message.CodeName(message.Code(code)); name != "" {
			st.Requests[name] = s.counters.requests[code].Load()
		}
	}
	for status := range message.NumStatuses {
		st.Replies[status.String()] = s.counters.Replies(status)
	}
	s.refusals.Each(func(r wire.Reason, n uint64) { st.Refused[r.Text()] = n })
	if s.cfg.Stats != nil {
		st.Store = s.cfg.Stats()
	}
	return st
}

func (c *Counters) named() map[string]uint64 {
	counts := map[string]uint64{}
	for name, n := range map[string]*atomic.Uint64{
		"accepted": &c.Accepted, "crowded": &c.Crowded, "accept_failed": &c.AcceptFailed,
		"unauthenticated": &c.Unauthenticated, "other_version": &c.OtherVersion, "too_many_clients": &c.TooManyClients,
		"lost": &c.Lost, "idle": &c.Idle, "hits": &c.Hits, "misses": &c.Misses, "bytes_in": &c.BytesIn, "bytes_out": &c.BytesOut,
		"capped": &c.Capped, "expired": &c.Expired, "bad_puts": &c.BadPuts, "bad_reads": &c.BadReads, "changed": &c.Changed,
		"read_failed": &c.ReadFailed, "unknown_codes": &c.unknownCodes,
	} {
		counts[name] = n.Load()
	}
	return counts
}

func (s *Server) statsJSON() ([]byte, error) { return json.Marshal(s.Stats()) }
