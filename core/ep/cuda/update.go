package cuda

import (
	"errors"
	"fmt"
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/safego"
)

// Prepare ends this rank's part in its epoch, as cpu.Buffer's does. It waits
// (Config.DrainTimeout) until nothing that this process has launched runs on the
// device. Handles are stale then. The caller launches no graph with recorded calls
// until Install. Prepare may be called again.
func (b *Buffer) Prepare() (ep.Standing, error) {
	b.lifecycleMu.Lock()
	defer b.lifecycleMu.Unlock()
	b.drainMessages()
	if err := b.interrupt(); err != nil {
		return ep.Standing{}, err
	}
	b.settled = false
	if err := b.settle(); err != nil {
		return ep.Standing{}, err
	}
	b.settled = true
	b.stopRemote()
	if err := b.awaitWatcher(); err != nil {
		return ep.Standing{}, err
	}
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	return ep.Standing{
		Epoch: membership.Members(b.word.Load()).Epoch(), Next: max(b.base, b.engine.Ops()) + runsAhead,
	}, nil
}

// runsAhead is the most operations that a rank which does not come to the rendezvous
// can be ahead of this one. Such a rank pushes the word that opens its slot into this
// rank's memory before it waits for any rank, at most once per slot. Words of the rank
// that takes its place must not look like those.
const runsAhead = protocol.MaxSlotsCUDA + 1

// interrupt makes the device end all waits, for an update.
func (b *Buffer) interrupt() error {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if s := b.life.State(); s == membership.Closed || s == membership.Connecting {
		return b.life.Why()
	}
	b.leaveFor(membership.Updating, ep.ErrBetweenEpochs)
	return nil
}

// settle waits until the device has done what this process has launched. After a
// deadline the wait goes on in the background, and the next call finds its result. A
// broken device does nothing any more. A device that could not be asked may still do
// something.
func (b *Buffer) settle() error {
	if b.drained == nil {
		drained := make(chan error, 1)
		b.drained = drained
		safego.Go("cuda drain", func() { drained <- b.drain() }, func(err error) { drained <- err })
	}
	timer := time.NewTimer(b.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case err := <-b.drained:
		b.drained = nil
		switch {
		case device.IsIdle(err):
			return nil
		case device.IsCaptured(err):
			return fmt.Errorf("a stream is being captured: %w", err)
		}
		return fmt.Errorf("the device was not asked whether it has done what was launched: %w", err)
	case <-timer.C:
		return b.notDrained()
	}
}

func (b *Buffer) notDrained() error {
	return fmt.Errorf("after %v the device has not done what was launched", b.cfg.DrainTimeout)
}

// awaitWatcher says that this rank is quiesced, and waits until the watcher does not
// ask the device, either. The watcher may have begun to ask later. Then it waits for
// what other buffers have launched meanwhile: the next epoch would have no watcher for
// so long, and the answer would be taken for that epoch's.
func (b *Buffer) awaitWatcher() error {
	b.stateMu.Lock()
	b.announceQuiesced()
	asking := b.watch.asking
	b.stateMu.Unlock()
	if asking == nil {
		return nil
	}
	timer := time.NewTimer(b.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-asking:
		return nil
	case <-timer.C:
		return b.notDrained()
	}
}

// Install begins an epoch, as cpu.Buffer's does. commit, if not nil, puts the ranks that
// have met in the places of the old ones in the domain. Then the memory of new ranks is
// mapped, until the deadline. Addresses of this rank's own memory stay, so graphs go on
// working.
//
// Before that, and until the deadline too, Install waits for ranks of the old epoch
// that live and have not come. It takes those of this host out of the old epoch. On a
// device their slots cannot be exchanged. So their processes must have ended, or must
// have said (by Prepare, or because they noticed) that they write nothing more. After
// an error calls remain impossible, and Install may be called again.
func (b *Buffer) Install(epoch membership.Epoch, base uint64, commit func() error, deadline time.Duration) error {
	b.lifecycleMu.Lock()
	defer b.lifecycleMu.Unlock()
	until := time.Now().Add(deadline)
	if err := b.mayInstall(epoch); err != nil {
		return err
	}
	b.claim(base)
	if err := b.awaitQuiesced(until); err != nil {
		return err
	}
	b.stopRemote() // left by an Install that failed late: commit changes the links it looks at
	if err := b.exchangeRanks(commit); err != nil {
		return err
	}
	b.entered = rankset.Set{} // once is enough: by now other ranks have their places
	if err := b.mapAll(until); err != nil {
		return err
	}
	if err := b.restart(base); err != nil {
		return err
	}
	if err := b.engine.Join(uint64(epoch)); err != nil {
		return err
	}
	if err := b.reachRemote(); err != nil {
		return err
	}
	if err := b.beginEpoch(epoch); err != nil {
		return b.missed(err)
	}
	return b.enter(epoch, base)
}

// missed is for a rank that the group has gone on without. Install may be called again.
func (b *Buffer) missed(err error) error {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.life.Leave(membership.Updating, ep.ErrFenced)
	return err
}

// exchangeRanks runs the commit of an Install, if there is one.
func (b *Buffer) exchangeRanks(commit func() error) error {
	if commit == nil {
		return nil
	}
	b.pages.Lock()
	defer b.pages.Unlock()
	return commit()
}

// restart makes the device count operations from base, which is not recorded.
func (b *Buffer) restart(base uint64) error {
	b.pauseRecording()
	err := b.engine.Restart(base)
	b.resumeRecording(err == nil)
	return err
}

// claim keeps the numbers of an epoch from being offered again. Other ranks may be in
// that epoch, and have pushed words with these numbers here, also when this rank's
// Install fails.
func (b *Buffer) claim(base uint64) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.base = max(b.base, base)
}

func (b *Buffer) mayInstall(epoch membership.Epoch) error {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if err := ep.MayInstall(&b.life, b.epoch, epoch); err != nil {
		return err
	}
	if !b.settled {
		return ep.Invalid("epoch %d cannot begin: the last Prepare has failed; prepare again", epoch)
	}
	return nil
}

// awaitQuiesced waits for ranks that may still write into this rank's slots. A rank
// that has come to the rendezvous has said that it does not. Another rank that lives is
// told of it, else it would go on in an epoch that every other rank has left.
func (b *Buffer) awaitQuiesced(until time.Time) error {
	for {
		left := b.entered.Without(b.self)
		left = left.Minus(b.quiesced(left))
		if left.Empty() {
			return nil
		}
		b.leaveOut(left)
		select {
		case <-b.stopped:
			return ep.ErrByOwner
		default:
		}
		b.stateMu.Lock()
		b.endOverdue(left, time.Now()) // ranks taken out while this rank was a member
		b.stateMu.Unlock()
		if !time.Now().Before(until) {
			r := left.Min()
			return fmt.Errorf("rank %d was taken out, and may still write into this rank's memory: its process (%d) must end first",
				r, b.pidOf(r))
		}
		time.Sleep(time.Millisecond)
	}
}

// leaveOut takes ranks that have not come out of the old epoch. They still count as
// healthy.
func (b *Buffer) leaveOut(ranks rankset.Set) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	absent := ranks.And(membership.Members(b.word.Load()).Ranks())
	if membership.LeaveOut(b.word, b.epoch, ranks) {
		b.fenced.absent = b.fenced.absent.Or(absent)
		b.wakeAll()
	}
}

func (b *Buffer) pidOf(rank int) int {
	if of := b.mapped[rank].of; of != nil {
		return of.PID()
	}
	return 0
}

// beginEpoch refuses when the group has gone on, or has begun this epoch from another
// rendezvous, with ranks that were not at this one.
func (b *Buffer) beginEpoch(epoch membership.Epoch) error {
	present := b.dom.Present()
	if !membership.Install(b.word, epoch, present) {
		return fmt.Errorf("%w: epoch %d is over already", ep.ErrFenced, epoch)
	}
	b.word.Begin(epoch, b.all)
	if set := membership.Members(b.word.Load()); set.Epoch() != epoch || !set.Ranks().Minus(present).Empty() {
		return fmt.Errorf("%w: epoch %d was begun by another rendezvous", ep.ErrFenced, epoch)
	}
	return nil
}

// Stop ends a Connect or Install of another thread that waits for other ranks, with
// ErrClosed. A caller that cannot call Close yet uses it; Close comes next, and stops
// them, too. Idempotent; it does not wait.
func (b *Buffer) Stop() { b.ending.Do(func() { close(b.stopped) }) }

// Close leaves the group, waits (Config.DrainTimeout) until the device has done what
// this process has launched, and frees everything. If a first phase has left something
// to send, and its second phase was not launched nor the handle released, remote ranks
// do not get it. The caller launches no graph with recorded calls after Close. If the
// device is not done by then, or ranks have the memory open by IPC handles, the error
// says so, the memory stays allocated, and Close may be called again; else idempotent.
func (b *Buffer) Close() error {
	b.Stop()
	b.lifecycleMu.Lock()
	defer b.lifecycleMu.Unlock()
	if b.end == ended {
		return nil
	}
	if err := b.leaveOthers(); err != nil {
		return err
	}
	return errors.Join(b.leaveDomain(), b.free())
}

// Leave is Close without freeing this rank's own memory, for a caller that still reads
// it. It releases the others' memory and all connections. Close comes later. After an
// error Leave may be called again; else idempotent.
func (b *Buffer) Leave() error {
	b.Stop()
	b.lifecycleMu.Lock()
	defer b.lifecycleMu.Unlock()
	if b.end == ended {
		return nil
	}
	if err := b.leaveOthers(); err != nil {
		return err
	}
	return b.leaveDomain()
}

// leaveOthers ends all that runs for the buffer, and then releases what it has of other
// ranks.
func (b *Buffer) leaveOthers() error {
	if b.end == running {
		b.drainMessages()
		b.shut()
		if err := b.settle(); err != nil {
			return err
		}
		b.stopRemote()
		if err := b.stopWatching(); err != nil {
			return err
		}
		b.end = idle
	}
	var all []error
	b.remote.reached = rankset.Set{}
	for r := range b.mapped {
		all = append(all, b.mapped[r].drop())
	}
	return errors.Join(all...)
}

// How far Close has come.
type ending int

const (
	running ending = iota
	idle           // nothing of the buffer runs any more
	ended
)

// stopWatching waits no longer than settle does: the watcher may be asking the device,
// and other buffers may have given that work since.
func (b *Buffer) stopWatching() error {
	b.stateMu.Lock()
	b.announceQuiesced()
	b.watch.stop = true
	b.dom.Wake(b.self)
	b.stateMu.Unlock()
	timer := time.NewTimer(b.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-b.watch.ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("after %v the watcher still waits for the device, which does work of others", b.cfg.DrainTimeout)
	}
}

// shut lets no further call begin.
func (b *Buffer) shut() {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.leaveFor(membership.Closed, ep.ErrByOwner)
	b.rec.Area.SetClosed()
}

// leaveDomain is idempotent.
func (b *Buffer) leaveDomain() error {
	err := b.offer.Close()
	b.endObserving()
	b.pages.Lock()
	defer b.pages.Unlock()
	return errors.Join(err, b.dom.Close())
}

func (b *Buffer) free() error {
	if err := b.awaitHolders(); err != nil {
		return err
	}
	if err := errors.Join(b.freeRounds(), b.engine.Close(), b.freeRemote()); err != nil {
		return err
	}
	b.end = ended
	return nil
}

// awaitHolders waits for processes that have this rank's memory open by its IPC
// handle.
func (b *Buffer) awaitHolders() error {
	until := time.Now().Add(b.cfg.DrainTimeout)
	for {
		holders := b.offer.Holders()
		if len(holders) == 0 {
			return nil
		}
		if !time.Now().Before(until) {
			return fmt.Errorf("process %d has this rank's memory open by its IPC handle", holders[0])
		}
		time.Sleep(time.Millisecond)
	}
}
