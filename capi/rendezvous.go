package main

// #include "internal.h"
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport/multihost"
)

// connectTimeout applies when the caller gives none.
const connectTimeout = 60 * time.Second

// rendezvous is how far a buffer has come towards its first or its next epoch.
type rendezvous struct {
	stage    stage
	listener *multihost.Listener
	change   *multihost.Change // the change of a rank that was connected before
	next     ep.Standing       // the epoch that begins, once the ranks have met
	timeout  time.Duration     // the timeout of its connect
	over     chan struct{}     // ends with its connect
}

type stage int

const (
	stageListening stage = iota // mw_buffer_connect may be called
	stageConnecting
	stageFailed
	stageMet  // mw_buffer_install may be called
	stageOver // calls on the buffer are possible
)

// end releases all that the rendezvous holds.
func (m *rendezvous) end() error {
	var err error
	if m.listener != nil {
		err = m.listener.Close()
	}
	if m.change != nil {
		m.change.Abort()
		m.change = nil
	}
	return err
}

func (b *buffer) metadata() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rendezvous.listener.Metadata()
}

// listen begins a rendezvous. The caller holds b.mu, or no other thread knows the buffer
// yet.
func (b *buffer) listen() error {
	l, err := b.newListener()
	if err == nil {
		b.rendezvous = rendezvous{listener: l}
	}
	return err
}

// newListener makes a listener. If the buffer had an epoch, the listener takes over the
// buffer's memory, so that addresses stay. Otherwise it has its own memory.
func (b *buffer) newListener() (*multihost.Listener, error) {
	if b.dom == nil {
		if err := b.dropGPU(); err != nil { // the core of a join that failed: a buffer has only one core
			return nil, err
		}
		if err := b.freeRings(); err != nil {
			return nil, err
		}
		return multihost.Open(b.open)
	}
	st, err := b.prepare()
	if err != nil {
		return nil, err
	}
	if err := b.freeRings(); err != nil {
		return nil, err
	}
	params, err := b.params(st)
	if err != nil {
		return nil, err
	}
	return multihost.Relist(b.dom, params)
}

func (b *buffer) prepare() (ep.Standing, error) {
	if b.onGPU != nil {
		return b.gpu.Load().Prepare()
	}
	return b.ep.Load().Prepare()
}

//export mwiBufferUpdate
func mwiBufferUpdate(id uint64) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, b.update)
}

// update leaves the epoch, or gives up a rendezvous, and begins a new rendezvous.
func (b *buffer) update() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b.closedError()
	}
	if b.rendezvous.stage == stageConnecting {
		return invalid("buffer %d is being connected in another thread", b.id)
	}
	if err := b.rereadKeys(); err != nil {
		return err // nothing has changed
	}
	_ = b.rendezvous.end() // a failure here has no consequence: the memory belongs to another owner
	joined := b.rendezvous.stage == stageOver
	b.rendezvous.stage = stageFailed // the stage until there is another listener
	if b.cfg.Joining && !joined {
		if err := b.forgetJoin(); err != nil {
			return err
		}
	}
	return b.listen()
}

// forgetJoin undoes a join that was not installed.
func (b *buffer) forgetJoin() error {
	e := b.ep.Swap(nil)
	b.dom, b.cfg.Joining = nil, false
	if b.onGPU != nil {
		return b.dropGPU()
	}
	if e == nil {
		return nil
	}
	return e.Close()
}

func (b *buffer) closedError() error {
	return fmt.Errorf("%w: buffer %d was closed", ep.ErrClosed, b.id)
}

//export mwiBufferConnect
func mwiBufferConnect(id uint64, all *C.mw_bytes_t, numRanks uint32, timeoutUs int64) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		timeout, err := micros("timeout_us", timeoutUs)
		if err != nil {
			return err
		}
		if timeout < 0 {
			timeout = connectTimeout
		}
		if timeout == 0 {
			return invalid("timeout_us is 0, allowed -1 (%v), 1 and more", connectTimeout)
		}
		if int(numRanks) != b.open.Shm.NumRanks {
			return invalid("num_ranks is %d, the buffer was created for %d", numRanks, b.open.Shm.NumRanks)
		}
		metas, err := copyMetadata(unsafe.Slice(all, numRanks))
		if err != nil {
			return err
		}
		return b.connect(metas, timeout)
	})
}

// copyMetadata returns nil for ranks that are absent.
func copyMetadata(all []C.mw_bytes_t) ([][]byte, error) {
	metas := make([][]byte, len(all))
	for r, m := range all {
		if err := inRange(fmt.Sprintf("all[%d].num_bytes", r), int64(m.num_bytes), 0, 1<<20); err != nil {
			return nil, err
		}
		data, err := view[byte](fmt.Sprintf("all[%d]", r), uint64(m.address), int64(m.num_bytes))
		if err != nil {
			return nil, err
		}
		metas[r] = append([]byte(nil), data...)
	}
	return metas, nil
}

// connect runs once per rendezvous. The listener stays where close finds it, so that
// closing ends a connect in another thread.
func (b *buffer) connect(metas [][]byte, timeout time.Duration) error {
	l, err := b.startConnect()
	if err != nil {
		return err
	}
	defer close(b.rendezvous.over)
	next, joining, err := b.readMetadata(metas)
	if err == nil {
		if b.dom == nil {
			err = b.join(l, metas, timeout, joining)
		} else {
			err = b.rejoin(l, metas, timeout)
		}
	}
	return b.endConnect(l, next, timeout, err)
}

func (b *buffer) startConnect() (*multihost.Listener, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, b.closedError()
	}
	if b.rendezvous.stage != stageListening {
		return nil, invalid("buffer %d was connected before: call mw_buffer_update first", b.id)
	}
	b.rendezvous.stage, b.rendezvous.over = stageConnecting, make(chan struct{})
	return b.rendezvous.listener, nil
}

func (b *buffer) endConnect(l *multihost.Listener, next ep.Standing, timeout time.Duration, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		err = errors.Join(b.closedError(), b.rendezvous.end())
		if e := b.ep.Load(); e != nil {
			_ = e.Close()
		}
		return err // on CUDA, close goes on
	}
	if err != nil {
		b.rendezvous.stage = stageFailed
		_ = l.Close()
		return err
	}
	b.rendezvous.next, b.rendezvous.stage, b.rendezvous.timeout = next, stageMet, timeout
	if b.rendezvous.change == nil && !b.cfg.Joining {
		b.rendezvous.stage = stageOver // all ranks are new: the first epoch has begun
	}
	return nil
}

// join connects a new rank, to a new group or to a running one.
func (b *buffer) join(l *multihost.Listener, metas [][]byte, timeout time.Duration, joining bool) error {
	if b.onGPU != nil {
		return b.joinGPU(l, metas, timeout, joining)
	}
	dom, err := l.Connect(metas, timeout)
	if err != nil {
		return err
	}
	kern, err := cpu.Open(b.rows)
	if err != nil {
		return errors.Join(err, dom.Close())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cfg.Joining = joining
	e, err := ep.New(dom, kern, b.cfg)
	if err != nil {
		kern.Close()
		return errors.Join(err, dom.Close())
	}
	b.dom = dom
	b.ep.Store(e)
	return nil
}

// rejoin connects a rank that had an epoch before.
func (b *buffer) rejoin(l *multihost.Listener, metas [][]byte, timeout time.Duration) error {
	change, err := l.Reconnect(metas, timeout)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rendezvous.change = change
	return nil
}

// readMetadata compares the parameters on which core/ep needs ranks to agree. It returns
// the epoch that the ranks make, and whether they join ranks that had one.
func (b *buffer) readMetadata(metas [][]byte) (next ep.Standing, joining bool, err error) {
	rank := b.open.Shm.Rank
	params, infos := make([][]byte, len(metas)), make([]multihost.Info, len(metas))
	for r, m := range metas {
		if len(m) == 0 {
			continue
		}
		info, err := multihost.ParseMetadata(m)
		if err != nil {
			return next, false, fmt.Errorf("metadata of rank %d: %w", r, err)
		}
		params[r], infos[r] = info.Shm.Params, info
		joining = joining || info.Survivor
	}
	if rank >= len(params) || params[rank] == nil {
		return next, false, invalid("all has no metadata of this rank, %d", rank)
	}
	if b.onGPU == nil {
		next, err = ep.CheckParams(rank, params)
		return next, joining, err
	}
	if next, err = gpu.CheckParams(rank, params); err == nil {
		err = b.onGPU.agree(params, infos)
	}
	return next, joining, err
}

//export mwiBufferInstall
func mwiBufferInstall(id uint64) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, b.install)
}

// install begins the epoch that the rendezvous has made.
func (b *buffer) install() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return b.closedError()
	}
	if b.rendezvous.stage == stageOver {
		return nil
	}
	if b.rendezvous.stage != stageMet {
		return invalid("buffer %d has no rendezvous to install: call mw_buffer_update and mw_buffer_connect first", b.id)
	}
	if err := b.begin(b.rendezvous.next); err != nil {
		return err
	}
	b.rendezvous.stage, b.cfg.Joining = stageOver, false
	return nil
}

func (b *buffer) begin(next ep.Standing) error {
	if b.onGPU != nil {
		return b.gpu.Load().Install(next.Epoch, next.Next, b.commit, b.rendezvous.timeout)
	}
	return b.ep.Load().Install(next.Epoch, next.Next, b.commit)
}

// commit replaces the old ranks by the ranks that have met, once.
func (b *buffer) commit() error {
	if b.rendezvous.change == nil {
		return nil
	}
	if err := b.rendezvous.change.Commit(); err != nil {
		return err // the change stays: a call without it would begin the epoch with the old ranks
	}
	b.rendezvous.change = nil
	return nil
}

//export mwiBufferMembers
func mwiBufferMembers(id uint64, out *C.mw_members_t) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		ranks, epoch, lost, err := b.membership()
		if err != nil {
			return err
		}
		out.ranks, out.epoch, out.num_lost = C.uint64_t(ranks.Word()), C.uint32_t(epoch), C.uint64_t(lost)
		return nil
	})
}

func (b *buffer) membership() (ranks rankset.Set, epoch uint16, lost uint64, err error) {
	if b.onGPU != nil {
		g, err := b.gpuCore()
		if err != nil {
			return rankset.Set{}, 0, 0, err
		}
		ranks, epoch, lost = g.Membership()
		return ranks, epoch, lost, nil
	}
	e, err := b.core()
	if err != nil {
		return rankset.Set{}, 0, 0, err
	}
	ranks, epoch, lost = e.Membership()
	return ranks, epoch, lost, nil
}
