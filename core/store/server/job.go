package server

import (
	"time"

	"github.com/moewire/moewire/core/pool"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// job is the context of one request: what it says, and the memory for its answer.
type job struct {
	lease   pool.Lease[*job]
	code    message.Code
	request uint64
	began   time.Time
	said    message.Request
	space   *space

	in     []byte // the table of the request
	keys   [][]byte
	yes    [message.MaxKeys]bool
	leases []Lease // of keys; held where they are not zero
	sends  bool    // get: the writer leases the blocks
	turns  int     // in which they were leased

	status message.Status
	extra  [message.RequestBytes]byte
	out    []byte // the reply, or the table before its data
	pieces [][]byte
	held   *handle // what a read reads
}

func newJob() (*job, error) {
	return &job{in: make([]byte, 0, leastBytes), out: make([]byte, 0, leastBytes)}, nil
}

// begin takes a request.
func (j *job) begin(head *wire.Head) {
	j.code, j.request, j.status, j.space, j.held = head.Code, head.Request, message.OK, nil, nil
	j.began = time.Now()
	j.keys, j.out, j.pieces, j.sends, j.turns = j.keys[:0], j.out[:0], j.pieces[:0], false, 0
}

// lease leases the blocks of keys [at, end).
func (c *conn) lease(j *job, at, end int) (hits int) {
	j.turns++
	if len(j.leases) < len(j.keys) {
		j.leases = make([]Lease, max(len(j.keys), min(2*len(j.leases), message.MaxKeys)))
	}
	return c.server.cfg.Store.Acquire(j.space.ns, j.keys[at:end], j.leases[at:end])
}

// letGo ends the leases that are held.
func (j *job) letGo() {
	for i := range j.leases {
		j.leases[i].Release()
		j.leases[i] = Lease{}
	}
}

// room makes in n bytes long.
func (j *job) room(n int) []byte {
	if cap(j.in) < n {
		j.in = make([]byte, n, max(n, 2*cap(j.in)))
	}
	j.in = j.in[:n]
	return j.in
}

const (
	leastBytes = 1 << 10
	keptBytes  = 64 << 10 // what a context keeps of its memory for the next request
)

// end lets go of blocks, and of memory for what is rarely as long.
func (j *job) end() {
	j.letGo()
	clear(j.pieces)
	if cap(j.in) > keptBytes {
		j.in = nil
	}
	if cap(j.out) > keptBytes {
		j.out = make([]byte, 0, leastBytes)
	}
}
