package server_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// steady is an engine with one block, which makes nothing: what is allocated is not its.
type steady struct {
	server.Store
	block []byte
	tag   atomic.Pointer[tag.Tag]
}

func (s *steady) Namespace([32]byte, string) (store.NS, error)      { return 0, nil }
func (s *steady) Leave(store.NS)                                    {}
func (s *steady) SetQuotas(map[[16]byte]int64)                      {}
func (s *steady) EvictOverQuotas(<-chan struct{})                   {}
func (s *steady) MaxBlockBytes(int) int64                           { return int64(len(s.block)) }
func (s *steady) Allocate(store.Allocation) (server.Writing, error) { return s, nil }
func (s *steady) TagKey() tag.Key                                   { return tag.Key{} }
func (s *steady) Buffer() []byte                                    { return s.block }
func (s *steady) Commit() error                                     { return nil }
func (s *steady) Abort()                                            {}
func (s *steady) Bytes() int64                                      { return int64(len(s.block)) }
func (s *steady) Tag() tag.Tag                                      { return *s.tag.Load() }
func (s *steady) Data() []byte                                      { return s.block }
func (s *steady) Place() int64                                      { return 0 }
func (s *steady) Read(int64, []byte) error                          { return nil }
func (s *steady) Release()                                          {}

func (s *steady) Exists(_ store.NS, keys [][]byte, found []bool) int {
	for i := range found {
		found[i] = true
	}
	return len(keys)
}

func (s *steady) Bad() {}

func (s *steady) Acquire(_ store.NS, keys [][]byte, leases []server.Lease) int {
	for i := range keys {
		leases[i] = server.Lease{Leased: s}
	}
	return len(keys)
}

// G13: in steady state a get, a put and an exists allocate nothing in the server. The client
// here does not, either.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector a sync.Pool drops what it is given now and then")
	}
	for _, p := range []wire.Protection{wire.ProtectDigest, wire.ProtectEncrypt} {
		t.Run(p.String(), func(t *testing.T) {
			engine := &steady{block: make([]byte, 100<<10)}
			s, _ := serve(t, func(c *server.Config) { c.Store, c.Protection = engine, p })
			r := open(t, s, func(c *wire.Config) { c.Protection = p })
			put, data := r.put("key", make([]byte, 100<<10))
			engine.tag.Store(&put.Tag)
			run := r.runner(len(data) + 1<<10)
			for what, f := range map[string]func(){
				"get":    func() { run(message.Get, message.Request{NumKeys: 1}, table1) },
				"put":    func() { run(message.Put, put, data) },
				"exists": func() { run(message.Exists, message.Request{NumKeys: 1}, table1) },
			} {
				require.Zero(t, testing.AllocsPerRun(50, f), what)
			}
		})
	}
}

// So it is over the store's own engine, in memory and in files.
func TestSteadyStateOverTheEngine(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector a sync.Pool drops what it is given now and then")
	}
	m, err := medium.NewMemory(1 << 30)
	require.NoError(t, err)
	f, err := medium.OpenFiles(t.TempDir(), 64<<20)
	require.NoError(t, err)
	for name, config := range map[string]store.Config{"memory": {Medium: m}, "files": {Medium: f, Secret: f.Secret()}} {
		t.Run(name, func(t *testing.T) { allocatesNothing(t, config) })
	}
}

func allocatesNothing(t *testing.T, config store.Config) {
	own, err := store.Open(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	s, _ := serve(t, func(c *server.Config) { c.Store = server.Of(own) })
	r := open(t, s)
	r.mustPut("key", make([]byte, 100<<10))
	run := r.runner(101 << 10)
	for code := range map[message.Code]bool{message.Get: true, message.Exists: true} {
		require.Zero(t, testing.AllocsPerRun(50, func() { run(code, message.Request{NumKeys: 1}, table1) }), code)
	}
	puts, blocks := make([]message.Request, 201), make([][]byte, 201)
	for i := range puts {
		puts[i], blocks[i] = r.put(fmt.Sprint("key", i), make([]byte, 10<<10))
	}
	next := 0
	put := func() { run(message.Put, puts[next], blocks[next]); next++ }
	for range 100 {
		put()
	}
	require.Zero(t, testing.AllocsPerRun(100, put), "put")
}

var table1 = table("key")

// runner does requests without allocating anything.
func (r *raw) runner(most int) func(message.Code, message.Request, []byte) {
	var extra [message.RequestBytes]byte
	into, pieces, head := make([]byte, most), make([][]byte, 1), new(wire.Head)
	return func(code message.Code, said message.Request, payload []byte) {
		pieces[0] = payload
		*head = wire.Head{Code: code, Extra: said.Encode(extra[:])}
		err := r.out.Append(head, pieces)
		if err == nil {
			err = r.out.Flush()
		}
		if err == nil {
			*head, err = r.in.Next()
		}
		if err == nil {
			err = r.in.ReadBlock(into[:head.PayloadBytes])
		}
		if err == nil {
			err = r.in.End()
		}
		if err != nil || head.Refused {
			r.t.Error(err, head.Status)
		}
	}
}
