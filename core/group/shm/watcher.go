package shm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
)

// watcher waits on one goroutine for many descriptors, each of which is reported once.
// The goroutine runs while something is registered. It keeps one thread, which holds this
// process's robust futexes: they show peers that the process is dying.
type watcher struct {
	lifecycleMu sync.Mutex // serialises add and remove; locked before mu
	mu          sync.Mutex // guards entries and failed; held while report functions run
	run         *watchRun  // nil when the goroutine is not running; guarded by lifecycleMu
}

// processWatcher serves all domains of this process.
var processWatcher watcher

// watchRun is one life of the goroutine.
type watchRun struct {
	epoll   *sys.Epoll
	stop    *sys.FD // token stopToken
	entries map[int32]watchEntry
	last    int32
	failed  error           // why the goroutine ended by itself
	started chan struct{}   // closed when robust is known
	robust  *sys.RobustList // nil where the kernel does not allow it
	done    chan struct{}   // closed when the goroutine is past its last report
}

type watchEntry struct {
	fd     *sys.FD
	report func(failure error)
}

const stopToken = 0

// add calls report(nil) once when fd becomes readable or ends, or
// report(err) if the watcher fails. After remove it is not called any more.
// report must not call the watcher. fd must stay open until remove.
func (w *watcher) add(fd *sys.FD, report func(failure error)) (token int32, err error) {
	w.lifecycleMu.Lock()
	defer w.lifecycleMu.Unlock()
	if err := w.ensureRun(); err != nil {
		return 0, err
	}
	if token, err = w.enter(w.run, watchEntry{fd, report}); err != nil {
		return 0, err
	}
	if err = w.run.epoll.Add(fd, token); err != nil {
		w.removeLocked(token)
	}
	return token, err
}

func (w *watcher) ensureRun() (err error) {
	if w.run == nil {
		w.run, err = w.start()
	}
	return err
}

// hold makes the watcher's thread the holder of a futex word, until unhold.
// Without it (an old kernel, too many domains) peers learn of this process's
// end by its pidfd, only later.
func (w *watcher) hold(header []byte, off int64) {
	w.lifecycleMu.Lock()
	defer w.lifecycleMu.Unlock()
	if w.ensureRun() != nil {
		return
	}
	if w.run.robust == nil || w.run.robust.Hold(header, off) != nil {
		w.removeLocked() // may have started it for nothing
	}
}

// unhold must come before the word's memory is unmapped.
func (w *watcher) unhold(header []byte, off int64) {
	w.lifecycleMu.Lock()
	defer w.lifecycleMu.Unlock()
	if w.run != nil && w.run.robust != nil {
		w.run.robust.Drop(header, off)
	}
	w.removeLocked()
}

// enter files an entry under a fresh token.
func (w *watcher) enter(run *watchRun, e watchEntry) (int32, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for run.failed == nil {
		run.last++
		if _, used := run.entries[run.last]; !used && run.last != stopToken {
			run.entries[run.last] = e
			return run.last, nil
		}
	}
	return 0, run.failed
}

// remove forgets tokens; when nothing is left it waits until the goroutine
// has ended.
func (w *watcher) remove(tokens ...int32) {
	w.lifecycleMu.Lock()
	defer w.lifecycleMu.Unlock()
	w.removeLocked(tokens...)
}

func (w *watcher) removeLocked(tokens ...int32) {
	if w.run == nil {
		return
	}
	if w.forget(w.run, tokens) == 0 && (w.run.robust == nil || w.run.robust.Len() == 0) {
		_ = sys.Signal(w.run.stop) // cannot fail on an open eventfd
		<-w.run.done
		w.run.close()
		w.run = nil
	}
}

// forget drops tokens and returns how many entries are left.
func (w *watcher) forget(run *watchRun, tokens []int32) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, token := range tokens {
		if e, ok := run.entries[token]; ok {
			_ = run.epoll.Remove(e.fd) // not there if Add failed
			delete(run.entries, token)
		}
	}
	return len(run.entries)
}

func (w *watcher) start() (*watchRun, error) {
	run := &watchRun{entries: map[int32]watchEntry{}, started: make(chan struct{}), done: make(chan struct{})}
	var err error
	if run.epoll, err = sys.NewEpoll(); err != nil {
		return nil, err
	}
	if run.stop, err = sys.NewEvent(); err == nil {
		err = run.epoll.Add(run.stop, stopToken)
	}
	if err != nil {
		run.close()
		return nil, err
	}
	safego.Go("shm watcher", func() { run.begin(); w.loop(run); run.finish() }, func(err error) {
		defer close(run.done)
		run.releaseThread() // first: this thread may end, and the process lives
		w.fail(run, err)
	})
	<-run.started
	return run, nil
}

// begin binds the goroutine to its thread.
func (r *watchRun) begin() {
	defer close(r.started)
	runtime.LockOSThread()
	r.robust, _ = sys.NewRobustList() // best effort, see hold
}

func (r *watchRun) finish() {
	r.releaseThread()
	close(r.done)
}

// releaseThread gives the thread back as it was.
func (r *watchRun) releaseThread() {
	if r.robust != nil {
		r.robust.Close()
	}
	runtime.UnlockOSThread()
}

func (r *watchRun) close() {
	sys.CloseAll(r.stop)
	_ = r.epoll.Close()
}

// loop returns when stop is signalled and panics when waiting fails.
func (w *watcher) loop(run *watchRun) {
	var tokens []int32
	for {
		var err error
		if tokens, err = run.epoll.Wait(tokens[:0]); err != nil {
			panic(err)
		}
		for _, token := range tokens {
			if token == stopToken {
				return
			}
			w.reportOne(run, token)
		}
	}
}

// reportOne calls the report function of a token that is still registered.
func (w *watcher) reportOne(run *watchRun, token int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := run.entries[token]; ok {
		e.report(nil)
	}
}

var errWatcher = errors.New("the watcher failed")

// fail tells every rank that nothing watches any more: silence would be taken for life.
func (w *watcher) fail(run *watchRun, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	run.failed = fmt.Errorf("%w: %w", errWatcher, cause)
	for _, e := range run.entries {
		e.report(run.failed)
	}
}
