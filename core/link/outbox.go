package link

import "encoding/binary"

// outbox is what a rank says to another one, until that one is known to have it: a
// connection that breaks loses none of it. Messages have numbers from 0, over all
// connections between the two.
type outbox struct {
	buf   []byte // of each message: its length, its code, its bytes
	first uint64 // number of the oldest one here
	num   uint64 // how many are here
	next  uint64 // number of the one to be written next
	at    int    // where that one begins
}

const entryBytes = 3

func (o *outbox) add(code uint8, message []byte) {
	o.buf = binary.LittleEndian.AppendUint16(o.buf, uint16(len(message)))
	o.buf = append(append(o.buf, code), message...)
	o.num++
}

// take returns the message to be written next.
func (o *outbox) take() (code uint8, message []byte, ok bool) {
	if o.next == o.first+o.num {
		return 0, nil, false
	}
	b := o.buf[o.at:]
	n := int(binary.LittleEndian.Uint16(b))
	o.next++
	o.at += entryBytes + n
	return b[2], b[entryBytes : entryBytes+n], true
}

// arrived forgets the messages before number n; false if n cannot be.
func (o *outbox) arrived(n uint64) bool {
	if n > o.next {
		return false
	}
	cut := 0
	for ; o.first < n; o.first++ {
		cut += entryBytes + int(binary.LittleEndian.Uint16(o.buf[cut:]))
		o.num--
	}
	if cut > 0 {
		o.buf = append(o.buf[:0], o.buf[cut:]...)
		o.at -= cut
	}
	return true
}

// resume goes on with number n, on a new connection; false if n cannot be.
func (o *outbox) resume(n uint64) bool {
	if n < o.first || !o.arrived(n) {
		return false
	}
	o.next, o.at = n, 0
	return true
}
