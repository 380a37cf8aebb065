package cpu_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/internal/sys"
)

const (
	// lonelyFor is what the calls of the table are given. A quiet machine needs 0.1 s more at most.
	lonelyFor = 200 * time.Millisecond
	mayBeLate = time.Second
)

// lonely is rank 0 of a world where no other rank does what it waits for.
type lonely struct {
	*world
	s    shape
	flat flatShape
	ins  []input
	ds   []*dispatched // of all ranks
}

// lonelyCall is a call with a deadline, and what all ranks do before.
type lonelyCall struct {
	name    string
	prepare func(l *lonely)
	call    func(l *lonely) error
}

var lonelyCalls = []lonelyCall{
	{"dispatch", nil, func(l *lonely) error { return l.begin(l.args(0, l.s, &l.ins[0], l.ds[0])) }},
	{"flat dispatch", nil, func(l *lonely) error {
		return l.begin(l.flatArgs(0, l.flat, &flatInput{input: l.ins[0]}, l.ds[0]))
	}},
	{"combine", (*lonely).dispatchAll, func(l *lonely) error { return l.end(l.combineArgs()) }},
	{"flat combine", (*lonely).dispatchAllFlat, func(l *lonely) error {
		d := l.ds[0]
		return l.end(flatCombineArgs(d, l.flat, &flatInput{input: l.ins[0]}, d.res.CombineX, true))
	}},
	{"combine buffer", func(l *lonely) {
		for i := range l.ins[0].topk {
			l.ins[0].topk[i] = int64(i % 2) // its own experts, so its combine waits for no rank
		}
		l.dispatchAll()
		require.NoError(l.t, l.end(l.combineArgs())) // the others read nothing
	}, func(l *lonely) error {
		_, err := l.bufs[0].CombineBuffer(l.ds[0].res.Op, -1)
		return err
	}},
}

func (l *lonely) begin(a *ep.DispatchArgs) error {
	a.Timeout = lonelyFor
	_, err := l.bufs[0].Dispatch(a, &l.ds[0].res, ep.PhaseDone, -1)
	return err
}

func (l *lonely) end(a *ep.CombineArgs) error {
	a.Timeout = lonelyFor
	_, err := l.bufs[0].Combine(l.ds[0].res.Op, a, ep.PhaseDone, -1)
	return err
}

func (l *lonely) combineArgs() *ep.CombineArgs {
	a := combineArgs(l.ds[0], &l.ins[0], make([]byte, l.ins[0].tokens*l.s.hidden*2))
	a.TopK = l.s.topk
	return a
}

func (l *lonely) dispatchAll() {
	l.each(func(r int) (err error) { l.ds[r], err = l.dispatch(r, l.s, &l.ins[r]); return err })
}

func (l *lonely) dispatchAllFlat() {
	l.each(func(r int) (err error) {
		l.ds[r], err = l.dispatchFlat(r, l.flat, &flatInput{input: l.ins[r]})
		return err
	})
}

func newLonely(t *testing.T, hosts []string) *lonely {
	l := &lonely{world: newHostsWorld(t, hosts), s: shape{ranks: len(hosts), maxTokens: 8, hidden: 64, experts: 2 * len(hosts), topk: 3}}
	l.flat, l.ins = flatShape{shape: l.s}, inputs(r2(1), l.s, uniform)
	l.ds = make([]*dispatched, len(hosts))
	for r := range l.ds {
		l.ds[r] = new(dispatched)
	}
	return l
}

// TestCallsEndInTimeWithoutAnything: a call that no other rank answers, in a process that has
// nothing left, ends by its deadline over every carrier. tests/python/test_deadlines.py has
// processes that are stopped, and a storm of signals.
func TestCallsEndInTimeWithoutAnything(t *testing.T) {
	errnos, late, number := []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC}, time.Duration(0), 0
	for carrier, hosts := range carriersOfHosts {
		for _, c := range lonelyCalls {
			number++
			for i, errno := range errnos {
				if testing.Short() && i != number%len(errnos) {
					continue
				}
				t.Run(fmt.Sprint(carrier, " ", c.name, " ", errno), func(t *testing.T) {
					late = max(late, c.lateness(t, hosts, errno))
				})
			}
		}
	}
	t.Logf("at most %v after the deadline", late)
}

// lateness is how long after its deadline a call has ended while such an error is what every
// system call gets that needs something.
func (c *lonelyCall) lateness(t *testing.T, hosts []string, errno syscall.Errno) time.Duration {
	l := newLonely(t, hosts)
	if c.prepare != nil {
		c.prepare(l)
	}
	stop := shortOf(errno)
	defer stop()
	ended, begin := make(chan error, 1), time.Now()
	go func() { ended <- c.call(l) }()
	select {
	case err := <-ended:
		took := time.Since(begin)
		require.LessOrEqual(t, took, lonelyFor+mayBeLate, err)
		require.False(t, errors.Is(err, ep.ErrInProgress), err)
		if !sys.IsShortage(err) { // which ends the call at once, and says of what
			require.GreaterOrEqual(t, took, lonelyFor/2, "it waited for no rank: %v", err)
		}
		return took - lonelyFor
	case <-time.After(20 * lonelyFor):
		t.Fatal("the call does not return")
		return 0
	}
}
