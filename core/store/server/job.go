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
	leases []Lease
	hits   bool // leases are held

	status message.Status
	extra  [message.RequestBytes]byte
	out    []byte // the reply, or the table before its data
	data   []byte // what had to be read
	pieces [][]byte
	held   *handle // what a read reads
}

func newJob() (*job, error) {
	return &job{
		in: make([]byte, 0, 16<<10), keys: make([][]byte, 0, message.MaxKeys), leases: make([]Lease, message.MaxKeys),
		out: make([]byte, 0, 16<<10), pieces: make([][]byte, 0, message.MaxKeys+1),
	}, nil
}

// begin takes a request.
func (j *job) begin(head *wire.Head) {
	j.code, j.request, j.status, j.space, j.held = head.Code, head.Request, message.OK, nil, nil
	j.began = time.Now()
	j.keys, j.out, j.pieces, j.hits = j.keys[:0], j.out[:0], j.pieces[:0], false
}

// room makes in n bytes long.
func (j *job) room(n int) []byte {
	if cap(j.in) < n {
		j.in = make([]byte, n, max(n, 2*cap(j.in)))
	}
	j.in = j.in[:n]
	return j.in
}

// end lets go of blocks.
func (j *job) end() {
	if j.hits {
		for i := range j.keys {
			j.leases[i].Release()
			j.leases[i] = Lease{}
		}
		j.hits = false
	}
	clear(j.pieces)
}
