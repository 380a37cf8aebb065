package main

// #include "internal.h"
import "C"

import (
	"encoding/json"
	"errors"
	"sync"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/store/client"
	"github.com/moewire/moewire/core/store/message"
)

// leaseObject is a mw_store_lease_t.
type leaseObject struct {
	*client.Lease
	of *storeObject
}

var leases = newTable[*leaseObject]("store lease")

// closing keeps a client that is closed from getting leases afterwards.
var closing sync.Mutex

// addLeases gives leases their ids.
func addLeases(o *storeObject, found []*client.Lease, ids *C.uint64_t, lengths *C.int64_t) {
	lengthsOf(found, lengths)
	to := unsafe.Slice(ids, len(found))
	for i, l := range found {
		to[i] = 0
		if l != nil {
			to[i] = C.uint64_t(leases.add(&leaseObject{l, o}))
		}
	}
}

// lengthsOf writes the bytes of blocks, -1 for a miss.
func lengthsOf(found []*client.Lease, lengths *C.int64_t) {
	sizes := unsafe.Slice(lengths, len(found))
	for i, l := range found {
		sizes[i] = -1
		if l != nil {
			sizes[i] = C.int64_t(l.Bytes())
		}
	}
}

// forgetLeases drops the ids of a client's leases. The servers end them with the connection.
func forgetLeases(o *storeObject) {
	closing.Lock()
	defer closing.Unlock()
	leases.drop(func(l *leaseObject) bool {
		if l.of == o {
			l.Forget()
		}
		return l.of == o
	})
}

//export mwiStoreLookup
func mwiStoreLookup(id uint64, request *C.mw_store_request_t, ids *C.uint64_t, lengths *C.int64_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		request.op = C.MW_STORE_EXISTS
		r, err := blocksOf(request)
		if err != nil {
			return err
		}
		found, err := o.Lookup(r.Keys, r.For, r.Timeout)
		if err != nil {
			return err
		}
		if ids == nil {
			lengthsOf(found, lengths)
			o.ReleaseAll(found)
			return nil
		}
		closing.Lock()
		defer closing.Unlock()
		if _, err := stores.get(id); err != nil {
			client.Forget(found)
			return client.ErrClosed
		}
		addLeases(o, found, ids, lengths)
		return nil
	})
}

//export mwiStoreLeaseRead
func mwiStoreLeaseRead(id, address, size uint64, ok *C.uint8_t) C.mw_status_t {
	l, err := leases.get(id)
	if err != nil {
		return report(err)
	}
	return guard(l.of, func() error {
		to, err := sliceOf("address", C.mw_bytes_t{C.uint64_t(address), C.uint64_t(size)}, message.MaxBlockBytes)
		if err != nil {
			return err
		}
		whole, err := l.Read([][]byte{to})
		if err != nil {
			return err
		}
		*ok = 0
		if whole {
			*ok = 1
		}
		return nil
	})
}

//export mwiStoreLeasePlace
func mwiStoreLeasePlace(id uint64, to *C.mw_store_place_t) C.mw_status_t {
	l, err := leases.get(id)
	if err != nil {
		return report(err)
	}
	return guard(l.of, func() error {
		place, there := l.Place()
		if !there {
			return errNone
		}
		to.fd, to.offset = C.int32_t(place.FD.Disown()), C.uint64_t(place.Offset)
		to.left_us = C.int64_t(max(0, time.Until(place.Until).Microseconds()))
		return nil
	})
}

//export mwiStoreLeaseEnd
func mwiStoreLeaseEnd(id uint64, kept *C.uint8_t) C.mw_status_t {
	l, err := leases.take(id)
	if err != nil {
		return report(err)
	}
	return guard(l.of, func() error {
		*kept = 0
		if l.End() {
			*kept = 1
		}
		l.Forget()
		return nil
	})
}

//export mwiStoreLeaseClose
func mwiStoreLeaseClose(id uint64) C.mw_status_t {
	l, err := leases.take(id)
	if err != nil {
		return report(err)
	}
	return guard(l.of, func() error {
		l.Release()
		return nil
	})
}

//export mwiStoreList
func mwiStoreList(id uint64, prefix, cursor *C.mw_bytes_t, timeoutUs int64, buf unsafe.Pointer, size uint64, length *C.uint64_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		if size < C.MW_STORE_LIST_BYTES {
			return invalid("cap is %d, needed %d", size, C.MW_STORE_LIST_BYTES)
		}
		begin, err := sliceOf("prefix", *prefix, message.MaxKeyBytes)
		if err != nil {
			return err
		}
		from, err := sliceOf("cursor", *cursor, client.PageBytes)
		if err != nil {
			return err
		}
		timeout, err := withinHour(timeoutUs)
		if err != nil {
			return err
		}
		keys, next, err := o.Page(begin, from, timeout)
		if err != nil {
			return err
		}
		return copyOut(message.AppendListed(nil, next, keys), buf, size, length)
	})
}

// withinHour is a timeout that a call was given; 0: that of the client.
func withinHour(timeoutUs int64) (time.Duration, error) {
	err := inRange(limits.Range{Name: "timeout_us", Most: time.Hour.Microseconds()}, timeoutUs)
	return fromMicros(C.int64_t(timeoutUs)), err
}

//export mwiStoreFlush
func mwiStoreFlush(id uint64, timeoutUs int64) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		timeout, err := withinHour(timeoutUs)
		if err != nil {
			return err
		}
		if timeout == 0 {
			timeout = 30 * time.Second
		}
		err = o.Flush(timeout)
		if err == nil || errors.Is(err, client.ErrClosed) {
			return err
		}
		return unreachable{err}
	})
}

// storeReport is what mw_store_stats shows. Its tags are the table of docs/observability.md.
type storeReport struct {
	Up          int                        `json:"servers_up" help:"Servers that this client has a connection to now."`
	Why         []string                   `json:"why_not,omitempty"`
	Hits        uint64                     `json:"hits" help:"Keys of gets and lookups that were found, with the right bytes."`
	Misses      uint64                     `json:"misses" help:"Those that were not there, or got no answer of a lookup."`
	BadTags     uint64                     `json:"bad_tags" help:"Blocks whose bytes did not fit their tag: misses."`
	Changed     uint64                     `json:"changed" help:"Those of them that are whole at their server: their connections were ended."`
	TooSmall    uint64                     `json:"too_small" help:"Blocks for which the buffers had no room."`
	Late        uint64                     `json:"late" help:"Keys of requests that made no progress until their deadline; requests without keys count one each."`
	Unreachable uint64                     `json:"unreachable" help:"Keys that were misses at once, because their server is known to be gone; other requests count one each."`
	Capped      uint64                     `json:"capped" help:"Requests that this client refused at its own bound, or that waited there until their deadline."`
	Broken      uint64                     `json:"broken" help:"Connections that ended, those of servers that hung too."`
	Probes      uint64                     `json:"probes_failed" help:"Attempts to reach a server again that failed."`
	Refused     uint64                     `json:"refused" help:"Attempts that a server refused: another key, clock or format, or with 'transport=\"shm\"' no memory."`
	Moved       uint64                     `json:"moved" help:"Blocks that were not any more where they had been, and were sent."`
	NotCached   uint64                     `json:"not_cached" help:"Blocks of files that were not in the page cache, and were sent: no reader waits for a disk."`
	Unreadable  uint64                     `json:"unreadable" help:"Blocks that could not be read where they lie, and were sent."`
	Bounced     uint64                     `json:"bounced" help:"Puts whose blocks a server of this host was to copy from shared memory."`
	Latched     uint64                     `json:"latched_to_tcp" help:"Servers whose blocks come by TCP for good, because shared memory failed."`
	Carriers    map[string]string          `json:"carriers" help:"What brings blocks of each server that there is: 'shm' or 'tcp'."`
	Replies     map[string]uint64          `json:"replies" help:"Puts that were answered, and requests that were refused, by status."`
	Servers     map[string]json.RawMessage `json:"servers" help:"What each server says of itself, as above; null without an answer."`
}

func reportOf(c *client.Client) storeReport {
	n := c.Counters()
	up, why := c.Up()
	r := storeReport{
		Up: up, Hits: n.Hits.Load(), Misses: n.Misses.Load(), BadTags: n.BadTags.Load(), Changed: n.Changed.Load(), TooSmall: n.TooSmall.Load(),
		Late: n.Late.Load(), Unreachable: n.Unreachable.Load(), Capped: n.Capped.Load(), Broken: n.Broken.Load(),
		Probes: n.ProbesFailed.Load(), Refused: n.Refused.Load(),
		Moved: n.Moved.Load(), NotCached: n.NotCached.Load(), Unreadable: n.Unreadable.Load(), Bounced: n.Bounced.Load(), Latched: n.Latched.Load(), Carriers: c.Carriers(),
		Replies: map[string]uint64{}, Servers: map[string]json.RawMessage{},
	}
	for _, err := range why {
		r.Why = append(r.Why, err.Error())
	}
	for s := range message.NumStatuses {
		if count := n.Replies(s); count > 0 {
			r.Replies[s.String()] = count
		}
	}
	return r
}

//export mwiStoreStats
func mwiStoreStats(id uint64, timeoutUs int64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		timeout, err := withinHour(timeoutUs)
		if err != nil {
			return err
		}
		said := o.Stats(timeout)
		r := reportOf(o.Client)
		for name, text := range said {
			r.Servers[name] = nil
			if json.Valid(text) {
				r.Servers[name] = text
			}
		}
		return copyJSON(r, buf, size, length)
	})
}
