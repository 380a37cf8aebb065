package fake_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// scene is two endpoints on a network that only moves when it is told to.
type scene struct {
	t       *testing.T
	clock   *fake.Clock
	network *fake.Network
	tr      [2]*fake.Transport
	ep      [2]transport.Endpoint
	mem     [2]transport.Region
}

func newScene(t *testing.T, cfg fake.Config) *scene {
	t.Helper()
	s := &scene{t: t, clock: fake.NewClock(time.Unix(1, 0))}
	cfg.Manual, cfg.Clock = true, s.clock
	if cfg.Seed == 0 {
		cfg.Seed = testenv.Seed(t)
	}
	s.network = fake.New(cfg)
	for i := range s.tr {
		s.tr[i] = s.network.Transport()
		var err error
		s.mem[i], err = s.tr[i].Register(make([]byte, 256), transport.AccessRead|transport.AccessWrite)
		require.NoError(t, err)
		s.ep[i] = s.endpoint(i)
	}
	require.NoError(t, s.ep[0].Connect(s.ep[1].Local(), s.in(time.Second)))
	require.NoError(t, s.ep[1].Connect(s.ep[0].Local(), s.in(time.Second)))
	return s
}

func (s *scene) endpoint(at int) transport.Endpoint {
	s.t.Helper()
	ep, err := s.tr[at].NewEndpoint(transport.EndpointSpec{SendDepth: 16, RecvDepth: 16})
	require.NoError(s.t, err)
	return ep
}

func (s *scene) in(d time.Duration) time.Time { return s.clock.Now().Add(d) }

func (s *scene) piece(at, off, n int) []transport.Piece {
	return []transport.Piece{{Region: s.mem[at], Off: off, Bytes: n}}
}

// write posts a write of eight bytes by endpoint 0.
func (s *scene) write(id uint64) {
	s.t.Helper()
	s.post(transport.SendRequest{ID: id, Op: transport.OpWrite, Local: s.piece(0, 0, 8), Remote: s.mem[1].Remote()})
}

func (s *scene) post(q transport.SendRequest) {
	s.t.Helper()
	_, err := s.ep[0].PostSend([]transport.SendRequest{q})
	require.NoError(s.t, err)
}

func (s *scene) recv(at int, id uint64) {
	s.t.Helper()
	_, err := s.ep[at].PostRecv([]transport.RecvRequest{{ID: id, Local: s.piece(at, 128, 64)}})
	require.NoError(s.t, err)
}

// poll returns all that can be polled.
func (s *scene) poll(at int) []transport.Completion {
	s.t.Helper()
	done := make([]transport.Completion, 64)
	n, err := s.tr[at].Poll(done)
	require.NoError(s.t, err)
	return done[:n]
}

// one lets everything happen and returns the only completion.
func (s *scene) one(at int) transport.Completion {
	s.t.Helper()
	s.network.Exhaust()
	done := s.poll(at)
	require.Len(s.t, done, 1)
	return done[0]
}

func (s *scene) events(at int) []transport.Event {
	events := make([]transport.Event, 64)
	return events[:s.tr[at].PollEvents(events)]
}
