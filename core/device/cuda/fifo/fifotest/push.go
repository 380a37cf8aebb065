// Package fifotest is, for tests, the device's end of a queue: what
// kernels/fifo.cuh does, in Go and in single steps.
package fifotest

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/device/cuda/fifo"
)

// State is what a push has come to.
type State int

// The states, as in fifo.cuh; Busy: it is not at its end.
const (
	Pushed State = iota
	Full
	Ended
	Busy
)

// Where the words are, as in the header.
const (
	taken, ended, firstEntry = 0, 1, 8
	seq, what, size, number  = 0, 1, 2, 3
	entry                    = 4
	generation               = 48
)

// Device is what the threads of a device share.
type Device struct {
	Words []uint64
	Next  atomic.Uint64
	Num   uint64 // descriptors
}

// Push is one thread's attempt to push one descriptor.
type Push struct {
	d      *Device
	of     fifo.Descriptor
	at     int // steps done
	ticket uint64
	e      []uint64
}

// Begin begins one.
func (d *Device) Begin(of fifo.Descriptor) Push { return Push{d: d, of: of} }

// Try is a whole one.
func (d *Device) Try(of fifo.Descriptor) State {
	p := d.Begin(of)
	for {
		if s := p.Step(); s != Busy {
			return s
		}
	}
}

// Step makes one access to memory.
func (p *Push) Step() State {
	d := p.d
	p.at++
	switch p.at {
	case 1:
		if atomic.LoadUint64(&d.Words[ended]) != 0 {
			return Ended
		}
	case 2:
		p.ticket = d.Next.Load()
	case 3:
		free := atomic.LoadUint64(&d.Words[taken])
		if p.ticket-free >= d.Num {
			if p.ticket>>generation == free>>generation {
				return Full
			}
			return Ended
		}
	case 4:
		if !d.Next.CompareAndSwap(p.ticket, p.ticket+1) {
			return Full
		}
		p.e = d.Words[firstEntry+entry*(p.ticket&(d.Num-1)):][:entry]
	case 5:
		p.e[what] = p.of.What
	case 6:
		p.e[size] = p.of.Bytes
	case 7:
		p.e[number] = p.of.Number
	case 8:
		atomic.StoreUint64(&p.e[seq], p.ticket+1)
		return Pushed
	}
	return Busy
}
