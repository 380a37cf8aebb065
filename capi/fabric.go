package main

// #include <stdlib.h>
// #include "internal.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/fabric"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// fabricObject is a mw_fabric_t.
type fabricObject struct {
	*fabric.Fabric
	poisonable
	id   uint64
	keys *wire.Keyring // wiped when the fabric is closed
}

var fabrics = newTable[*fabricObject]("fabric")

// The ids of regions and transfers carry the id of their fabric in the lowest bits.
const (
	fabricBits = 16
	maxFabrics = 1<<fabricBits - 1
)

func (o *fabricObject) poison(err error) {
	o.poisonable.poison(err)
	o.Abandon(err)
}

// onFabric runs an exported function that works on a fabric.
func onFabric(id uint64, f func(o *fabricObject) error) C.mw_status_t {
	return on(fabrics, id, func(o *fabricObject) error { return asUnreachable(f(o)) })
}

// unreachable is endpoint.ErrUnreachable, whatever the cause. A cause that is a deadline
// of the carrier is not a deadline of the caller.
type unreachable struct{ cause error }

func (u unreachable) Error() string        { return u.cause.Error() }
func (u unreachable) Is(target error) bool { return target == endpoint.ErrUnreachable }

func asUnreachable(err error) error {
	if errors.Is(err, endpoint.ErrUnreachable) {
		return unreachable{err}
	}
	return err
}

// deadlineOf turns a timeout of the ABI into a time; -1 gives a time far away.
func deadlineOf(us int64) (time.Time, error) {
	d, err := micros("timeout_us", us)
	if err != nil {
		return time.Time{}, err
	}
	const longest = 100 * 365 * 24 * time.Hour
	if d < 0 || d > longest {
		d = longest
	}
	return time.Now().Add(d), nil
}

//export mwiFabricCreate
func mwiFabricCreate(config *C.mw_fabric_config_t, id *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		ensureProcs()
		o, err := openFabric(config)
		if err != nil {
			return err
		}
		if o.id = fabrics.add(o); o.id > maxFabrics {
			_, _ = fabrics.take(o.id)
			_ = o.Close(time.Now().Add(time.Second))
			o.keys.Close()
			return invalid("this process has made %d fabrics, and ids have no room for more", maxFabrics)
		}
		*id = C.uint64_t(o.id)
		return nil
	})
}

// fabricReport is what mw_fabric_report shows.
type fabricReport struct {
	Carrier        string       `json:"carrier"`
	Device         string       `json:"device"`
	Mode           string       `json:"mode"`
	NumPeers       int          `json:"num_peers"`
	MaxPeers       int          `json:"max_peers"`
	MaxConnections int          `json:"max_connections"`
	Eviction       string       `json:"eviction"`
	MaxTransfers   int          `json:"max_transfers"`
	MaxRegions     int          `json:"max_regions"`
	SliceBytes     int64        `json:"slice_bytes"`
	Stats          fabric.Stats `json:"stats"`
}

//export mwiFabricReport
func mwiFabricReport(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return onFabric(id, func(o *fabricObject) error {
		c, s := o.Config(), o.Stats()
		return copyJSON(fabricReport{
			Carrier: o.Name(), Device: o.Device(), Mode: o.Mode().String(), NumPeers: s.NumPeers, MaxPeers: c.NumPeers,
			MaxConnections: c.NumConnections, Eviction: c.Eviction.String(), MaxTransfers: c.NumTransfers, MaxRegions: c.NumRegions,
			SliceBytes: c.SliceBytes, Stats: s,
		}, buf, size, length)
	})
}

// errNone stands for MW_IN_PROGRESS of a fabric, which is not a failure.
var errNone = errors.New("not yet")

//export mwiFabricNextHandshake
func mwiFabricNextHandshake(id uint64, timeoutUs int64, peer *C.uint64_t, buf unsafe.Pointer, size uint64, length *C.uint64_t) C.mw_status_t {
	return onFabric(id, func(o *fabricObject) error {
		if size < C.MW_MAX_HANDSHAKE_BYTES {
			return invalid("cap is %d, needed %d", size, C.MW_MAX_HANDSHAKE_BYTES)
		}
		deadline, err := deadlineOf(timeoutUs)
		if err != nil {
			return err
		}
		to, n, ok, err := o.Next(unsafe.Slice((*byte)(buf), C.MW_MAX_HANDSHAKE_BYTES), deadline)
		if err != nil {
			return err
		}
		if !ok {
			return errNone
		}
		*peer, *length = C.uint64_t(to), C.uint64_t(n)
		return nil
	})
}

//export mwiFabricDeliver
func mwiFabricDeliver(id, peer uint64, handshake unsafe.Pointer, size uint64) C.mw_status_t {
	return onFabric(id, func(o *fabricObject) error {
		if size > C.MW_MAX_HANDSHAKE_BYTES {
			return invalid("len is %d, allowed 0 to %d", size, C.MW_MAX_HANDSHAKE_BYTES)
		}
		return o.Deliver(endpoint.Peer(peer), unsafe.Slice((*byte)(handshake), size))
	})
}

//export mwiFabricConnect
func mwiFabricConnect(id, peer uint64, timeoutUs int64) C.mw_status_t {
	return onFabric(id, func(o *fabricObject) error {
		deadline, err := deadlineOf(timeoutUs)
		if err != nil {
			return err
		}
		if err = o.Connect(endpoint.Peer(peer), deadline); errors.Is(err, endpoint.ErrConnecting) {
			return errNone
		}
		return err
	})
}

//export mwiFabricDisconnect
func mwiFabricDisconnect(id, peer uint64) C.mw_status_t {
	return onFabric(id, func(o *fabricObject) error {
		o.Disconnect(endpoint.Peer(peer))
		return nil
	})
}

//export mwiFabricClose
func mwiFabricClose(id uint64, timeoutUs int64) C.mw_status_t {
	o, err := fabrics.get(id)
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error {
		deadline, err := deadlineOf(timeoutUs)
		if err != nil {
			return err
		}
		if err := o.Close(deadline); err != nil {
			return err
		}
		o.keys.Close()
		_, err = fabrics.take(id) // of two callers, only one closes it
		return err
	})
}

// ofFabric splits the id of a region or transfer into the ids of the fabric and of the
// object.
func ofFabric(name string, id uint64) (o *fabricObject, number uint64, err error) {
	number = id >> fabricBits
	if o, err = fabrics.get(id & maxFabrics); err != nil {
		return nil, 0, fmt.Errorf("%s %d: %w", name, id, err)
	}
	return o, number, nil
}

func onRegion(id uint64, f func(o *fabricObject, r fabric.RegionID) error) C.mw_status_t {
	o, number, err := ofFabric("region", id)
	if err != nil {
		return report(err)
	}
	return guard(o, func() error { return f(o, fabric.RegionID(number)) })
}

//export mwiRegionRegister
func mwiRegionRegister(id, address, size uint64, access uint32, region *C.uint64_t) C.mw_status_t {
	return onFabric(id, func(o *fabricObject) error {
		if size == 0 || size > math.MaxInt64 {
			return invalid("num_bytes is %d, allowed 1 to %d", size, int64(maxElements))
		}
		mem, err := view[byte]("address", address, int64(size))
		if err != nil {
			return err
		}
		if access > C.MW_ACCESS_WRITE|C.MW_ACCESS_READ {
			return invalid("access is %#x, allowed are MW_ACCESS_WRITE and MW_ACCESS_READ", access)
		}
		got, err := o.Register(mem, transport.Access(access))
		if err != nil {
			return err
		}
		*region = C.uint64_t(uint64(got)<<fabricBits | o.id)
		return nil
	})
}

//export mwiRegionRemote
func mwiRegionRemote(id uint64, remote *C.mw_remote_t) C.mw_status_t {
	return onRegion(id, func(o *fabricObject, r fabric.RegionID) error {
		at, err := o.Remote(r)
		if err != nil {
			return err
		}
		remote.address, remote.num_bytes, remote.key = C.uint64_t(at.Addr), C.uint64_t(at.SizeBytes), C.uint64_t(at.Key)
		return nil
	})
}

//export mwiRegionClose
func mwiRegionClose(id uint64) C.mw_status_t {
	return onRegion(id, func(o *fabricObject, r fabric.RegionID) error { return o.CloseRegion(r) })
}
