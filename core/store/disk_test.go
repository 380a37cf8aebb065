package store

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/moewire/moewire/core/store/record"
)

var errDisk = errors.New("input/output error")

// disk is a medium that lasts, of small segments. What was written since the last Sync may be lost, page by page.
type disk struct {
	mu            sync.Mutex
	segmentBytes  int64
	secret        record.Secret
	data, durable [][]byte
	touched       map[[2]int64]bool // segment and page, written since the last Sync
	bad           map[[2]int64]bool // segment and page that cannot be read
	lame          map[int]bool      // segments that cannot be written to
	forgets       bool              // a flush that fails loses what was written, and the next one succeeds without it
	room          int               // segments that there is room for; 0: for all
	taken         map[int]bool      // segments that have their room
	fault         func(op string) (written float64, err error)
	before        atomic.Pointer[func(op string)] // called at the beginning of each call, without a lock
}

func newDisk(segmentBytes int64, numSegments int) *disk {
	d := &disk{segmentBytes: segmentBytes, touched: map[[2]int64]bool{}, bad: map[[2]int64]bool{}, taken: map[int]bool{}}
	d.secret[0] = 7
	for range numSegments {
		d.data = append(d.data, make([]byte, segmentBytes))
		d.durable = append(d.durable, make([]byte, segmentBytes))
	}
	return d
}

func (d *disk) SegmentBytes() int64            { return d.segmentBytes }
func (d *disk) NumSegments() int               { return len(d.data) }
func (d *disk) Lasts() bool                    { return true }
func (d *disk) Bytes(int, int64, int64) []byte { return nil }
func (d *disk) Close() error                   { return nil }

// fails has calls fail from now on: how much of a write is written, and the error.
func (d *disk) fails(fault func(op string) (written float64, err error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// laming has segments that cannot be written to from now on.
func (d *disk) laming(segments ...int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lame = map[int]bool{}
	for _, segment := range segments {
		d.lame[segment] = true
	}
}

// hasRoom says for how many segments there is room from now on; 0: for all.
func (d *disk) hasRoom(numSegments int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room = numSegments
}

// calls has f called at the beginning of each call from now on.
func (d *disk) calls(f func(op string)) { d.before.Store(&f) }

func (d *disk) begins(op string) {
	if f := d.before.Load(); f != nil {
		(*f)(op)
	}
}

func (d *disk) failing(op string) (float64, error) {
	if d.fault == nil {
		return 1, nil
	}
	return d.fault(op)
}

func (d *disk) Write(segment int, off int64, pieces ...[]byte) error {
	d.begins("write")
	d.mu.Lock()
	defer d.mu.Unlock()
	share, err := d.failing("write")
	switch {
	case err != nil:
	case d.lame[segment]:
		return errDisk
	case d.room > 0 && !d.taken[segment] && len(d.taken) >= d.room:
		return syscall.ENOSPC
	default:
		d.taken[segment] = true
		err = d.meetBad(segment, off, pieces)
	}
	for _, p := range pieces {
		whole := int64(len(p))
		if err != nil {
			p = p[:int(share*float64(len(p)))]
		}
		copy(d.data[segment][off:], p)
		for page := off / record.PageBytes; page*record.PageBytes < off+int64(len(p)); page++ {
			d.touched[[2]int64{int64(segment), page}] = true
		}
		off += whole
	}
	return err
}

// meetBad is for a write to pages of which some cannot be read: one that covers a page makes it a good one, one of a part of it
// needs to read the rest.
func (d *disk) meetBad(segment int, off int64, pieces [][]byte) error {
	end := off
	for _, p := range pieces {
		end += int64(len(p))
	}
	for page := off / record.PageBytes; page*record.PageBytes < end; page++ {
		at := [2]int64{int64(segment), page}
		if d.bad[at] && (page*record.PageBytes < off || (page+1)*record.PageBytes > end) {
			return errDisk
		}
	}
	for page := off / record.PageBytes; page*record.PageBytes < end; page++ {
		delete(d.bad, [2]int64{int64(segment), page})
	}
	return nil
}

func (d *disk) Read(segment int, off int64, p []byte) error {
	d.begins("read")
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.failing("read"); err != nil {
		return err
	}
	for page := off / record.PageBytes; page*record.PageBytes < off+int64(len(p)); page++ {
		if d.bad[[2]int64{int64(segment), page}] {
			return errDisk
		}
	}
	copy(p, d.data[segment][off:])
	return nil
}

func (d *disk) Sync(int) error {
	d.begins("sync")
	defer d.begins("synced")
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.failing("sync"); err != nil {
		if d.forgets {
			clear(d.touched)
		}
		return err
	}
	for at := range d.touched {
		d.settle(at)
	}
	return nil
}

func (d *disk) settle(at [2]int64) {
	off := at[1] * record.PageBytes
	copy(d.durable[at[0]][off:], d.data[at[0]][off:min(off+record.PageBytes, d.segmentBytes)])
	delete(d.touched, at)
}

// crash is a disk as it is found after the power was cut: any of the pages that were not synced may have been written.
func (d *disk) crash(rng *rand.Rand) *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	share := rng.Float64()
	for at := range d.touched {
		if rng.Float64() < share {
			d.settle(at)
		}
	}
	return d.like(d.durable)
}

// killed is a disk as it is found after the process was killed: the kernel has all that was written.
func (d *disk) killed() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.like(d.data)
}

func (d *disk) like(data [][]byte) *disk {
	other := newDisk(d.segmentBytes, len(data))
	other.secret, other.forgets = d.secret, d.forgets
	for i := range data {
		copy(other.data[i], data[i])
		copy(other.durable[i], data[i])
	}
	return other
}
