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
	to, sizes := unsafe.Slice(ids, len(found)), unsafe.Slice(lengths, len(found))
	for i, l := range found {
		to[i], sizes[i] = 0, -1
		if l != nil {
			to[i], sizes[i] = C.uint64_t(leases.add(&leaseObject{l, o})), C.int64_t(l.Bytes())
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
	return onStore(id, func(o *storeObject) error {
		request.op = C.MW_STORE_EXISTS
		r, err := blocksOf(request)
		if err != nil {
			return err
		}
		found, err := o.Lookup(r.Keys, r.For)
		if err != nil {
			return err
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
func mwiStoreList(id uint64, prefix, cursor *C.mw_bytes_t, buf unsafe.Pointer, size uint64, length *C.uint64_t) C.mw_status_t {
	return onStore(id, func(o *storeObject) error {
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
		keys, next, err := o.Page(begin, from)
		if err != nil {
			return err
		}
		return copyOut(message.AppendListed(nil, next, keys), buf, size, length)
	})
}

//export mwiStoreFlush
func mwiStoreFlush(id uint64, timeoutUs int64) C.mw_status_t {
	return onStore(id, func(o *storeObject) error {
		if err := inRange(limits.Range{Name: "timeout_us", Most: time.Hour.Microseconds()}, timeoutUs); err != nil {
			return err
		}
		timeout := fromMicros(C.int64_t(timeoutUs))
		if timeout == 0 {
			timeout = 30 * time.Second
		}
		err := o.Flush(timeout)
		if err == nil || errors.Is(err, client.ErrClosed) {
			return err
		}
		return unreachable{err}
	})
}

// storeReport is what mw_store_stats shows.
type storeReport struct {
	Up          int                        `json:"servers_up"`
	Why         []string                   `json:"why_not,omitempty"`
	Hits        uint64                     `json:"hits"`
	Misses      uint64                     `json:"misses"`
	BadTags     uint64                     `json:"bad_tags"`
	Changed     uint64                     `json:"changed"`
	TooSmall    uint64                     `json:"too_small"`
	Late        uint64                     `json:"late"`
	Unreachable uint64                     `json:"unreachable"`
	Capped      uint64                     `json:"capped"`
	Broken      uint64                     `json:"broken"`
	Probes      uint64                     `json:"probes_failed"`
	Refused     uint64                     `json:"refused"`
	Moved       uint64                     `json:"moved"`
	NotCached   uint64                     `json:"not_cached"`
	Unreadable  uint64                     `json:"unreadable"`
	Latched     uint64                     `json:"latched_to_tcp"`
	Carriers    map[string]string          `json:"carriers"`
	Replies     map[string]uint64          `json:"replies"`
	Servers     map[string]json.RawMessage `json:"servers"`
}

func reportOf(c *client.Client) storeReport {
	n := c.Counters()
	up, why := c.Up()
	r := storeReport{
		Up: up, Hits: n.Hits.Load(), Misses: n.Misses.Load(), BadTags: n.BadTags.Load(), Changed: n.Changed.Load(), TooSmall: n.TooSmall.Load(),
		Late: n.Late.Load(), Unreachable: n.Unreachable.Load(), Capped: n.Capped.Load(), Broken: n.Broken.Load(),
		Probes: n.ProbesFailed.Load(), Refused: n.Refused.Load(),
		Moved: n.Moved.Load(), NotCached: n.NotCached.Load(), Unreadable: n.Unreadable.Load(), Latched: n.Latched.Load(), Carriers: c.Carriers(),
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
func mwiStoreStats(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return onStore(id, func(o *storeObject) error {
		said := o.Stats()
		r := reportOf(o.Client)
		for name, text := range said {
			r.Servers[name] = nil
			if json.Valid(text) {
				r.Servers[name] = text
			}
		}
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return copyOut(data, unsafe.Pointer(buf), size, length)
	})
}
