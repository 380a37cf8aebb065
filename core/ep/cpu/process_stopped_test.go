package cpu_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
)

// stoppedFile says that rank 1 is stopped.
const stoppedFile = "stopped"

// TestCallsEndInTimeWithoutAStoppedRank: the process of the other rank is stopped, and this one has
// nothing left: the call ends by its deadline, without that rank, or says what it lacks.
func TestCallsEndInTimeWithoutAStoppedRank(t *testing.T) {
	testenv.InAll(t)
	for _, hosts := range []string{"aa", "ab"} {
		for _, call := range []string{"dispatch", "combine"} {
			for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC} {
				t.Run(fmt.Sprint(hosts, " ", call, " ", errno), func(t *testing.T) {
					spec := groupSpec{
						Hosts: hosts, Setting: multihost.Shm, Killed: -1, Bound: lonelyFor, Seed: testenv.Seed(t), Lacks: fmt.Sprint(call, " ", int(errno)),
					}
					if hosts == "ab" {
						spec.Setting = multihost.TCP
					}
					g := startProcesses(t, spec)
					g.all[0].Await("ready")
					g.all[1].Await("ready")
					require.NoError(t, g.all[1].Process.Signal(syscall.SIGSTOP))
					g.tell(stoppedFile)
					t.Log(g.all[0].Await("ended"))
					require.NoError(t, g.all[0].Wait())
				})
			}
		}
	}
}

// callWithout is what the two ranks of that test do. Rank 1 plays until it would be waited for.
func (s *rankSpec) callWithout(w *world) error {
	var call string
	var errno int
	if _, err := fmt.Sscan(s.Lacks, &call, &errno); err != nil {
		return err
	}
	shape := shape{ranks: 2, maxTokens: 8, hidden: 64, experts: 4, topk: 3}
	ins := inputs(r2(1), shape, uniform)
	for range 4 { // slabs of a host's ranks are mapped at their first use
		if err := w.roundTrip(s.Rank, shape, ins); err != nil {
			return err
		}
	}
	d, err := new(dispatched), error(nil)
	if call == "combine" {
		if d, err = w.dispatch(s.Rank, shape, &ins[s.Rank]); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	if s.Rank == 1 {
		time.Sleep(processTimeout)
		return errors.New("it was not stopped")
	}
	if _, err := s.await(stoppedFile); err != nil {
		return err
	}
	defer sys.InjectFaults(func(string) error { return syscall.Errno(errno) })()
	begin := time.Now()
	if call == "combine" {
		c := combineArgs(d, &ins[0], make([]byte, ins[0].tokens*shape.hidden*2))
		c.TopK, c.Timeout = shape.topk, lonelyFor
		_, err = w.bufs[0].Combine(d.res.Op, c, ep.PhaseDone, -1)
	} else {
		a := w.args(0, shape, &ins[0], d)
		a.Timeout = lonelyFor
		_, err = w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
	}
	took := time.Since(begin)
	fmt.Println("ended", took, err)
	if gone := w.bufs[0].Members() == rankset.Of(0); !gone && err == nil {
		err = errors.New("the stopped rank is a member")
	} else if sys.IsShortage(err) && s.Hosts == "aa" {
		err = nil // of fresh memory in place of the slab to which the stopped rank may write
	}
	if took < lonelyFor/2 || took > lonelyFor+mayBeLate {
		err = errors.Join(err, fmt.Errorf("it took %v of %v", took, lonelyFor))
	}
	return err
}
