package main

// #include "internal.h"
import "C"

import (
	"errors"
	"unsafe"

	"github.com/moewire/moewire/core/store/client"
	"github.com/moewire/moewire/core/wire"
)

// storeObject is a mw_store_t.
type storeObject struct {
	*client.Client
	poisonable
	keys *wire.Keyring // wiped when the client is closed
	said *lines        // warnings that were not taken yet
}

var stores = newTable[*storeObject]("store client")

func (o *storeObject) poison(err error) {
	o.poisonable.poison(err)
	_ = o.Close()
}

//export mwiStoreOpen
func mwiStoreOpen(config *C.mw_store_config_t, id *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		ensureProcs()
		cfg, err := storeConfigOf(config)
		if err != nil {
			return err
		}
		o := &storeObject{keys: cfg.Keys, said: &lines{}}
		cfg.Warn = o.said.add
		if o.Client, err = client.Open(cfg); err != nil {
			wipe(cfg.Keys)
			return err
		}
		*id = C.uint64_t(stores.add(o))
		return nil
	})
}

//export mwiStoreWarnings
func mwiStoreWarnings(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		return o.said.copyOut(buf, size, length)
	})
}

//export mwiStoreClose
func mwiStoreClose(id uint64) C.mw_status_t {
	o, err := stores.take(id) // of two callers, only one closes it
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error {
		err := o.Close()
		forgetLeases(o)
		o.keys.Close()
		return err
	})
}

//export mwiStoreDo
func mwiStoreDo(id uint64, request *C.mw_store_request_t, ok *C.uint8_t, lengths *C.int64_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		r, err := blocksOf(request)
		if err != nil {
			return err
		}
		done, err := o.Do(r)
		if err != nil {
			return err
		}
		tell(&done, ok, lengths)
		return nil
	})
}

//export mwiStoreSubmit
func mwiStoreSubmit(id uint64, request *C.mw_store_request_t, number *C.uint64_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		r, err := blocksOf(request)
		if err != nil {
			return err
		}
		n, err := o.Submit(r)
		if err != nil {
			return err
		}
		*number = C.uint64_t(n)
		return nil
	})
}

// tell writes what became of each key.
func tell(done *client.Completion, ok *C.uint8_t, lengths *C.int64_t) {
	oks, sizes := unsafe.Slice(ok, len(done.OK)), unsafe.Slice(lengths, len(done.OK))
	for i, yes := range done.OK {
		oks[i], sizes[i] = 0, C.int64_t(done.Lengths[i])
		if yes {
			oks[i] = 1
		}
	}
}

func tellAll(done *client.Completion, to *C.mw_store_completion_t, ok *C.uint8_t, lengths *C.int64_t) {
	to.id, to.num_keys = C.uint64_t(done.ID), C.uint32_t(len(done.OK))
	if done.Err != nil {
		to.status = C.int32_t(statusOf(done.Err))
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&to.too_large)), len(to.too_large)-1) // zeros until now
	copy(text, oneLine(done.TooLarge))
	tell(done, ok, lengths)
}

//export mwiStoreDrain
func mwiStoreDrain(id uint64, done *C.mw_store_completion_t, ok *C.uint8_t, lengths *C.int64_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		c, there := o.Next()
		if !there {
			return errNone
		}
		tellAll(&c, done, ok, lengths)
		return nil
	})
}

//export mwiStoreWait
func mwiStoreWait(id, number uint64, timeoutUs int64, done *C.mw_store_completion_t, ok *C.uint8_t, lengths *C.int64_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		deadline, err := deadlineOf(timeoutUs)
		if err != nil {
			return err
		}
		if number == 0 {
			return invalid("id is 0, allowed what mw_store_submit has given")
		}
		c, err := o.Wait(number, deadline)
		if errors.Is(err, client.ErrDeadline) {
			return errNone
		}
		if err != nil {
			return err
		}
		tellAll(&c, done, ok, lengths)
		return nil
	})
}

//export mwiStoreEventFD
func mwiStoreEventFD(id uint64, fd *C.int32_t) C.mw_status_t {
	return on(stores, id, func(o *storeObject) error {
		*fd = C.int32_t(o.EventFD())
		return nil
	})
}
