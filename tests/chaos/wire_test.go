package chaos

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"
)

// command is what the parent tells a rank.
type command struct {
	What     string // prepare, connect, install, abort, close, arm, disarm
	Seq      int    // of the rendezvous
	Now      bool   // prepare: in the middle of a call
	All      [][]byte
	Deadline time.Duration
	Term     uint64
	Fault    fault
}

// event is what a rank tells the parent.
type event struct {
	What  string // see child.apply
	Seq   int
	Set   uint64 // ranks
	Steps uint64
	At    int64 // UnixNano: step: when a call found another set; fired
	Gap   time.Duration
	Point point
	Text  string
	Data  []byte
}

// mouth writes events, one JSON value a line.
type mouth struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (m *mouth) say(e event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.enc.Encode(e) // the parent may be gone
}

// decode calls f for each JSON value of a stream until that ends.
func decode[T any](from io.Reader, f func(T)) {
	dec := json.NewDecoder(bufio.NewReader(from))
	for {
		var v T
		if dec.Decode(&v) != nil {
			return
		}
		f(v)
	}
}
