package chaos

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/multihost"
)

// slabBytes is what one slab has when its size is given.
const slabBytes = 8 << 20

// config is how the buffers of a group are made. Ranks agree on slots and
// size, given or found by the first dispatch; they differ in whether they fill
// what is released.
func (r *rank) config() ep.Config {
	cfg := ep.Config{NumSlots: 2 + int(r.seed>>1&1), DebugFill: r.fill}
	if r.seed>>2&1 == 1 {
		cfg.NumBytes = slabBytes * int64(cfg.NumSlots)
	}
	return cfg
}

// prepare begins a rendezvous: it gives up another one that has not ended.
func (r *rank) prepare(seq int) (err error) {
	r.playing = false
	r.leaveRendezvous()
	r.trap.hit(atPrepare)
	if r.buffer() == nil {
		err = r.open()
	} else {
		err = r.relist()
	}
	if err != nil {
		return err
	}
	r.say("metadata", event{Seq: seq, Data: r.listener.Metadata()})
	r.trap.hit(atListening)
	return nil
}

func (r *rank) leaveRendezvous() {
	if r.listener != nil {
		_ = r.listener.Close()
	}
	if r.change != nil {
		r.change.Abort()
		r.change = nil
	}
	if b := r.buffer(); b != nil && !r.installed {
		_ = b.Close() // as if it had never come
		r.ep.Store(nil)
	}
}

func (r *rank) open() error {
	params, err := cpu.Params(r.config(), ep.Standing{})
	if err != nil {
		return err
	}
	cfg, err := r.reach(params)
	if err == nil {
		r.listener, err = multihost.Open(cfg)
	}
	return err
}

func (r *rank) relist() error {
	st, err := r.buffer().Prepare()
	if err != nil {
		return err
	}
	r.trap.hit(atPrepared)
	params, err := cpu.Params(r.config(), st)
	if err != nil {
		return err
	}
	r.listener, err = multihost.Relist(r.dom.Domain.(*multihost.Domain), params)
	return err
}

// connect meets the others; the parent decides what a failure means.
func (r *rank) connect(c command) {
	ended := make(chan struct{})
	go func() { // a fault in the middle
		select {
		case <-time.After(time.Duration(r.own.IntN(3000)) * time.Microsecond):
			r.trap.hit(atConnecting)
		case <-ended:
		}
	}()
	err := r.meet(c)
	close(ended)
	if err != nil {
		r.say("failed", event{Seq: c.Seq, Text: err.Error()})
		return
	}
	r.trap.hit(atConnected)
	r.say("connected", event{Seq: c.Seq})
}

func (r *rank) meet(c command) (err error) {
	params, joining := make([][]byte, r.ranks), false
	for i, m := range c.All {
		if len(m) == 0 {
			continue
		}
		info, err := multihost.ParseMetadata(m)
		if err != nil {
			return err
		}
		params[i], joining = info.Shm.Params, joining || info.Survivor
	}
	if r.next, err = cpu.CheckParams(r.num, params); err != nil {
		return err
	}
	if r.buffer() != nil {
		r.change, err = r.listener.Reconnect(c.All, c.Deadline)
		return err
	}
	return r.join(c, joining)
}

func (r *rank) join(c command, joining bool) error {
	dom, err := r.listener.Connect(c.All, c.Deadline)
	if err != nil {
		return err
	}
	if err := r.checkPaths(dom); err != nil {
		r.wrong(err)
	}
	kern, err := kernels.New(0)
	if err != nil {
		return errors.Join(err, dom.Close())
	}
	r.dom, r.joining = tapDomain(dom, r.trap), joining
	cfg := r.config()
	cfg.Joining = joining
	b, err := cpu.New(r.dom, tappedKernels{kern, r.trap}, cfg)
	if err != nil {
		return errors.Join(err, dom.Close())
	}
	r.ep.Store(b)
	return nil
}

// install begins the epoch and plays its script. A rank that was away for too long
// finds that the group has gone on.
func (r *rank) install(c command) error {
	r.trap.hit(atInstall)
	if r.joining || r.change != nil {
		err := r.buffer().Install(r.next.Epoch, r.next.Next, r.commit)
		if errors.Is(err, ep.ErrFenced) {
			r.say("fenced", event{Seq: int(c.Term)})
			return nil
		}
		if err != nil {
			return err
		}
	}
	r.joining, r.installed, r.playing, r.term, r.steps = false, true, true, c.Term, 0
	r.reported, r.changedAt = r.members(), time.Time{}
	r.say("installed", event{Seq: c.Seq, Set: r.reported.Word()})
	r.fork()
	r.trap.hit(atInstalled)
	return nil
}

func (r *rank) commit() error {
	r.trap.hit(atCommit)
	if r.change != nil {
		if err := r.change.Commit(); err != nil {
			return err
		}
		r.change = nil
	}
	r.trap.hit(atCommitted)
	return nil
}

// maxSlabs are many more than there are slots: a slab is replaced while another rank
// may still write to it, and used again after that.
const maxSlabs = 32

// close leaves and looks whether anything is left.
func (r *rank) close() error {
	r.leaveRendezvous()
	if b := r.buffer(); b != nil {
		slabs := b.Counters().SlabBytes
		if err := b.Close(); err != nil {
			return err
		}
		if slabs > maxSlabs*slabBytes {
			return fmt.Errorf("slabs of %d bytes were made, at most %d are right", slabs, maxSlabs*slabBytes)
		}
	}
	if err := r.before.check(r.place); err != nil {
		return err
	}
	r.say("closed", event{})
	return nil
}

// usage is what a process holds.
type usage struct {
	fds                 string
	maps                int // of shared memory
	threads, goroutines int
}

func measure() usage {
	u := usage{goroutines: runtime.NumGoroutine()}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil && !strings.Contains(to, "/proc/") {
			u.fds += fd.Name() + " " + to + "\n"
		}
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	u.maps = strings.Count(string(maps), "memfd:moewire")
	tasks, _ := os.ReadDir("/proc/self/task")
	u.threads = len(tasks)
	return u
}

// spareThreads are those that the Go runtime starts for calls that block, and
// keeps. With remote ranks several goroutines wait in the kernel at a time, those of
// connections that end beside those of the next ones.
func (p place) spareThreads() int {
	if p == allLocal {
		return 12
	}
	return 32
}

// check waits a little for goroutines that are ending.
func (u usage) check(at place) error {
	var after usage
	for range 50 {
		after = measure()
		if after.fds == u.fds && after.maps == u.maps && after.goroutines <= u.goroutines+1 { // +1: listen
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	if after.fds != u.fds || after.maps != u.maps || after.goroutines > u.goroutines+1 || after.threads > u.threads+at.spareThreads() {
		stacks := make([]byte, 1<<16)
		return fmt.Errorf("left behind: %+v, before: %+v\n%s", after, u, stacks[:runtime.Stack(stacks, true)])
	}
	return nil
}
