package main

// #include "internal.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/metrics"
	"github.com/moewire/moewire/core/store/rights"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// serverObject is a mw_store_server_t.
type serverObject struct {
	*server.Server
	poisonable
	store *store.Store
	arena server.Arena
	http  *metrics.Listener // nil: none
	keys  *wire.Keyring
	log   *lines

	draining sync.Mutex
	drained  bool
	ended    error // what draining has returned
}

var servers = newTable[*serverObject]("store server")

// lines are lines of log that were not taken yet.
type lines struct {
	mu      sync.Mutex
	kept    []string
	dropped int
}

const maxLines, maxLineBytes = 256, 2000

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) == maxLines {
		l.dropped++
		return
	}
	l.kept = append(l.kept, oneLine(line[:min(len(line), maxLineBytes)]))
}

// take is as many lines as have room.
func (l *lines) take(room uint64) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b []byte
	for len(l.kept) > 0 && uint64(len(b)+len(l.kept[0])+1) <= room {
		b = append(append(b, l.kept[0]...), '\n')
		l.kept = l.kept[1:]
	}
	if l.dropped > 0 && len(l.kept) == 0 && uint64(len(b)+64) <= room {
		b = fmt.Appendf(b, "%d lines were dropped\n", l.dropped)
		l.dropped = 0
	}
	return b
}

func (l *lines) copyOut(buf *C.char, size uint64, length *C.uint64_t) error {
	if size < 4096 {
		return invalid("cap is %d, needed 4096", size)
	}
	return copyOut(l.take(size), unsafe.Pointer(buf), size, length)
}

//export mwiStoreServe
func mwiStoreServe(config *C.mw_store_server_config_t, id *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		ensureProcs()
		if err := checkServer(config); err != nil {
			return err
		}
		keys, err := keyringOf(config.key_source, &config.keys, rights.Parse)
		if err != nil {
			return err
		}
		o := &serverObject{keys: keys, log: &lines{}}
		if err := o.open(config); err != nil {
			keys.Close()
			return err
		}
		*id = C.uint64_t(servers.add(o))
		return nil
	})
}

// maxFlushEvery bounds how long a group of blocks waits for its flush: a flush that fails is tried again as often.
const maxFlushEvery = 10 * time.Second

func checkServer(c *C.mw_store_server_config_t) error {
	if err := inRanges([]ranged{
		{choice("storage", C.MW_STORAGE_MEMORY, C.MW_STORAGE_FILE), int64(c.storage)},
		{choice("durability", 0, C.MW_DURABILITY_EACH), int64(c.durability)},
		{choice("no_singles", 0, 1), int64(c.no_singles)},
		{choice("reserved", 0, 0), int64(c.reserved)},
		{choice("num_clients", 0, maxNumber), int64(c.num_clients)},
		{choice("flush_every_us", 0, maxFlushEvery.Microseconds()), int64(c.flush_every_us)},
	}); err != nil {
		return err
	}
	if c.capacity_bytes > math.MaxInt64 || c.flush_bytes > math.MaxInt64 {
		return invalid("config->capacity_bytes is %d, flush_bytes %d, allowed 0 to %d",
			uint64(c.capacity_bytes), uint64(c.flush_bytes), int64(math.MaxInt64))
	}
	if _, err := medium.SegmentBytesFor(int64(c.capacity_bytes)); err != nil {
		return invalid("config->capacity_bytes: %v", err)
	}
	if c.storage == C.MW_STORAGE_MEMORY && c.durability == C.MW_DURABILITY_EACH {
		return invalid("config->durability is MW_DURABILITY_EACH, allowed MW_DURABILITY_GROUP and _NONE with MW_STORAGE_MEMORY")
	}
	if has := c.path.num_bytes != 0; has != (c.storage == C.MW_STORAGE_FILE) {
		return invalid("config->path: %d bytes given, allowed a folder with MW_STORAGE_FILE, and none with MW_STORAGE_MEMORY", uint64(c.path.num_bytes))
	}
	return nil
}

// open opens the storage, and then the listener.
func (o *serverObject) open(c *C.mw_store_server_config_t) error {
	protection, err := protectionOf(c.protection)
	if err != nil {
		return err
	}
	listen, err := listenOf("config->listen", &c.listen)
	if err != nil {
		return err
	}
	observe := ""
	if c.metrics.num_bytes > 0 {
		if observe, err = listenOf("config->metrics", &c.metrics); err != nil {
			return err
		}
	}
	if o.store, err = o.storage(c); err != nil {
		return err
	}
	o.Server, err = server.Listen(server.Config{
		Store: server.Of(o.store), Storage: uint8(c.storage), Arena: o.arena, Addr: listen, Keys: o.keys, Protection: protection,
		NoSingles: c.no_singles == 1, MaxClients: int(c.num_clients), Stats: func() any { return o.store.Stats() }, Log: o.log.add,
	})
	if err != nil {
		return errors.Join(err, o.store.Close())
	}
	if err := o.observe(observe); err != nil {
		o.Close()
		return errors.Join(err, o.store.Close())
	}
	return nil
}

// observe serves /metrics at an address. Without an address it does nothing.
func (o *serverObject) observe(address string) (err error) {
	if address == "" {
		return nil
	}
	o.http, err = metrics.Listen(address, func() []byte { return metrics.Text(o.Stats()) }, o.log.add)
	return err
}

func listenOf(name string, b *C.mw_bytes_t) (string, error) {
	text, err := textOf(name, b)
	if err != nil {
		return "", err
	}
	if _, port, err := net.SplitHostPort(text); err != nil || !isPort(port) || strings.Contains(text, ",") {
		return "", invalid("%s has %.64q, allowed is address:port, such as 127.0.0.1:9900 or [::1]:0", name, text)
	}
	return text, nil
}

func (o *serverObject) storage(c *C.mw_store_server_config_t) (*store.Store, error) {
	cfg := store.Config{
		Durability: store.Durability(c.durability), FlushEvery: fromMicros(c.flush_every_us),
		FlushBytes: int64(c.flush_bytes), Log: o.log.add,
	}
	if c.storage == C.MW_STORAGE_MEMORY {
		m, err := medium.NewMemory(int64(c.capacity_bytes))
		if err != nil {
			return nil, err
		}
		cfg.Medium, o.arena = m, m
		return store.Open(cfg)
	}
	path, err := textOf("config->path", &c.path)
	if err != nil {
		return nil, err
	}
	m, err := medium.OpenFiles(path, int64(c.capacity_bytes))
	if err != nil {
		return nil, err
	}
	cfg.Medium, cfg.Secret, o.arena = m, m.Secret(), m
	cfg.StagedBytes = stagedBytes + m.SegmentBytes() // a block that fills a segment leaves room for others
	return store.Open(cfg)
}

//export mwiStoreServerAddress
func mwiStoreServerAddress(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return on(servers, id, func(o *serverObject) error {
		return copyOut([]byte(o.Addr().String()), unsafe.Pointer(buf), size, length)
	})
}

//export mwiStoreServerMetrics
func mwiStoreServerMetrics(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return on(servers, id, func(o *serverObject) error {
		address := ""
		if o.http != nil {
			address = o.http.Addr().String()
		}
		return copyOut([]byte(address), unsafe.Pointer(buf), size, length)
	})
}

//export mwiStoreServerStats
func mwiStoreServerStats(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return on(servers, id, func(o *serverObject) error {
		return copyJSON(o.Stats(), buf, size, length)
	})
}

//export mwiStoreServerLog
func mwiStoreServerLog(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return on(servers, id, func(o *serverObject) error {
		return o.log.copyOut(buf, size, length)
	})
}

//export mwiStoreServerReload
func mwiStoreServerReload(id uint64) C.mw_status_t {
	return on(servers, id, func(o *serverObject) error {
		if err := o.Reload(); err != nil {
			return invalid("config->keys: %v", err)
		}
		return nil
	})
}

//export mwiStoreServerDrain
func mwiStoreServerDrain(id uint64, timeoutUs int64) C.mw_status_t {
	deadline, err := deadlineOf(timeoutUs)
	if err != nil {
		return report(err)
	}
	return on(servers, id, func(o *serverObject) error { return o.drain(deadline) })
}

//export mwiStoreServerClose
func mwiStoreServerClose(id uint64, timeoutUs int64) C.mw_status_t {
	deadline, err := deadlineOf(timeoutUs)
	if err != nil {
		return report(err)
	}
	o, err := servers.take(id) // of two callers, only one closes it
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error {
		err := o.drain(deadline)
		if o.http != nil {
			o.http.Close()
		}
		return err
	})
}

// stagedBytes bounds what is written to files at a time; one block of any length comes on top.
const stagedBytes = 64 << 20

// storageTime is how long a storage may take to seal and flush what there is.
const storageTime = 30 * time.Second

// drain ends the server and then its storage. Its counts, its log and /metrics stay. Idempotent.
func (o *serverObject) drain(deadline time.Time) error {
	o.draining.Lock()
	defer o.draining.Unlock()
	if !o.drained {
		o.drained = true
		o.Drain(deadline)
		o.ended = o.CloseStore(func() error { o.keys.Close(); return o.store.Close() }, storageTime)
	}
	return o.ended
}
