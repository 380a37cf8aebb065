package server

import (
	"encoding/json"
	"time"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/metrics"
	"github.com/moewire/moewire/core/wire"
)

// Counters count by reason. Their tags are the rows of package metrics. Safe for concurrent use.
type Counters struct {
	Accepted metrics.Counter `json:"accepted" metric:"connections_total" help:"Connections that were taken."`

	Crowded         metrics.Counter `json:"crowded" metric:"connections_refused_total,cause=crowded" help:"Connections that did not become clients; crowded: too many others wanted to at the same time."`
	Unauthenticated metrics.Counter `json:"unauthenticated" metric:"connections_refused_total,cause=unauthenticated" help:"Those whose handshake failed, ended early or took too long."`
	OtherVersion    metrics.Counter `json:"other_version" metric:"other_version_clients_total" help:"Those of them that have the key and speak another format."`
	TooManyClients  metrics.Counter `json:"too_many_clients" metric:"connections_refused_total,cause=too_many_clients" help:"Those that had the key when there were as many clients as may be."`
	AcceptFailed    metrics.Counter `json:"accept_failed" metric:"accept_failures_total" help:"Times that the system gave no connection, for want of descriptors as a rule."`
	Lost            metrics.Counter `json:"lost" metric:"connections_lost_total" help:"Clients whose connection broke, or did not go on in time."`
	Idle            metrics.Counter `json:"idle" metric:"connections_idle_total" help:"Those of the lost that did not read or write on."`

	Hits     metrics.Counter `json:"hits" metric:"hits_total" help:"Keys of gets and lookups that were found."`
	Misses   metrics.Counter `json:"misses" metric:"misses_total" help:"Keys of gets and lookups that were not found."`
	BytesIn  metrics.Counter `json:"bytes_in" metric:"received_bytes_total" help:"Bytes of blocks that came, also of those whose tag was wrong."`
	BytesOut metrics.Counter `json:"bytes_out" metric:"sent_bytes_total" help:"Bytes of blocks that clients were sent, or read where they lie."`

	Singles metrics.Counter `json:"single_requests" metric:"single_requests_total" help:"Signed requests outside of sessions that were genuine."`

	Denied  metrics.Counter `json:"denied" metric:"denied_requests_total" help:"Requests that were refused because their key has no right to them."`
	Revoked metrics.Counter `json:"revoked" metric:"connections_revoked_total" help:"Those of the lost whose key, or its rights, are no more in the key file."`

	Capped       metrics.Counter `json:"capped" metric:"capped_requests_total" help:"Requests that were refused because as many of their connection run as may."`
	Expired      metrics.Counter `json:"expired" metric:"expired_handles_total" help:"Leases and unfinished blocks whose time was over."`
	BadPuts      metrics.Counter `json:"bad_puts" metric:"integrity_failures_total,found=put" help:"Blocks whose bytes do not fit their tag; put: they came so, and were refused."`
	BadReads     metrics.Counter `json:"bad_reads" metric:"integrity_failures_total,found=read" help:"Those of which a reader said so, that do not fit here either, and were dropped."`
	Changed      metrics.Counter `json:"changed" metric:"changed_reads_total" help:"Blocks of which a reader said so, and that are whole here."`
	ReadFailed   metrics.Counter `json:"read_failed" metric:"read_failures_total" help:"Reads of the storage that failed while blocks were sent or looked at: misses."`
	UnknownCodes metrics.Counter `json:"unknown_codes" metric:"unknown_requests_total" help:"Requests with a code that there is not."`

	requests [message.NumCodes]metrics.Counter
	replies  [message.NumStatuses]metrics.Counter
	refused  [message.NumStatuses]metrics.Counter // puts
	times    [message.NumCodes]metrics.Histogram
}

// Requests is how many requests of a code came.
func (c *Counters) Requests(code message.Code) uint64 { return c.requests[code].Load() }

// Replies is how many requests were answered with a status; of those for several keys, as a
// whole.
func (c *Counters) Replies(s message.Status) uint64 { return c.replies[s].Load() }

// replied counts an answer, and a block that was refused.
func (c *Counters) replied(r *reply) {
	c.replies[r.status].Add(1)
	if r.status.Refuses() && (r.code == message.Put || r.code == message.Allocate || r.code == message.Commit) {
		c.refused[r.status].Add(1)
	}
}

// Counters are the server's own.
func (s *Server) Counters() *Counters { return &s.counters }

// Refusals are those of handshakes and frames, by reason.
func (s *Server) Refusals() *wire.Counters { return &s.refusals }

// Stats is what a server says of itself. Its tags are the rows of package metrics.
type Stats struct {
	Started  float64                    `json:"started_s" metric:"start_time_seconds" help:"When the server began to listen, seconds since 1970."`
	Storage  uint8                      `json:"storage" metric:"storage" help:"1: memory, 2: files, 3: files without the cache."`
	Clients  int                        `json:"clients" metric:"clients" help:"Sessions of clients now."`
	Running  int                        `json:"requests_running" metric:"running_requests" help:"Requests of sessions that are not answered yet."`
	Draining int                        `json:"draining" metric:"draining" help:"1: the server takes no more requests."`
	Counts   *Counters                  `json:"counts"` // they go on counting
	Requests map[string]uint64          `json:"requests" metric:"requests_total,code" help:"Requests that came over sessions."`
	Replies  map[string]uint64          `json:"replies" metric:"replies_total,status" help:"Requests of sessions that were answered, also those that were refused at once; those for several keys as a whole."`
	Puts     map[string]uint64          `json:"refused_puts" metric:"refused_puts_total,cause" help:"Blocks of sessions that were not stored, by the status of the answer."`
	Refused  map[string]uint64          `json:"refused_frames" metric:"refused_frames_total,reason" help:"Handshakes and messages that were refused, by reason."`
	Latency  map[string]metrics.Latency `json:"latency" metric:"request_duration_seconds,code" help:"Time from the head of a request to the end of its answer; without requests that were refused because as many run as may."`
	Store    any                        `json:"store,omitempty"`
}

// Stats counts by reason, and asks the engine.
func (s *Server) Stats() Stats {
	st := Stats{
		Started: float64(s.started.UnixMilli()) / 1e3, Counts: &s.counters, Requests: map[string]uint64{},
		Replies: map[string]uint64{}, Puts: map[string]uint64{}, Refused: map[string]uint64{},
		Latency: map[string]metrics.Latency{}, Running: s.running(), Clients: len(s.all()),
		Storage: s.cfg.Storage,
	}
	if s.isClosing() {
		st.Draining = 1
	}
	s.counters.byCode(&st)
	s.counters.byStatus(&st)
	s.refusals.Each(func(r wire.Reason, n uint64) { st.Refused[r.Text()] = n })
	if s.cfg.Stats != nil {
		st.Store = s.cfg.Stats()
	}
	return st
}

// byCode fills in the requests, and the times of those that were answered.
func (c *Counters) byCode(st *Stats) {
	for code := range c.requests {
		name := message.CodeName(message.Code(code))
		if name == "" {
			continue
		}
		st.Requests[name] = c.requests[code].Load()
		if l := c.times[code].Now(); l.Count > 0 {
			st.Latency[name] = l
		}
	}
}

func (c *Counters) byStatus(st *Stats) {
	for status := range message.NumStatuses {
		st.Replies[status.String()] = c.replies[status].Load()
		if status.Refuses() {
			st.Puts[status.String()] = c.refused[status].Load()
		}
	}
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// answered counts how long a request took.
func (c *Counters) answered(code message.Code, began time.Time) {
	c.times[code].Observe(time.Since(began))
}

// statsJSON is what a client is told, once visible has looked at what the engine says.
func (s *Server) statsJSON(visible func(engine any) any) ([]byte, error) {
	st := s.Stats()
	st.Store = visible(st.Store)
	return json.Marshal(st)
}
