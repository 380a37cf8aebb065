package cpu_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// watchedDomain does something when the member set is looked at for the n-th
// time.
type watchedDomain struct {
	domain.Domain
	left atomic.Int64
	act  func(domain.MemberWord)
}

func (d *watchedDomain) Members() domain.MemberWord {
	word := d.Domain.Members()
	if d.left.Add(-1) == 0 {
		d.act(word)
	}
	return word
}

// TestFencedAnywhere: at whatever moment a rank is taken out of the group, its call
// ends with ErrFenced, or with the complete result that it had by then.
func TestFencedAnywhere(t *testing.T) {
	for name, act := range map[string]func(domain.MemberWord){
		"fenced":     fenceZero,
		"next epoch": func(word domain.MemberWord) { membership.Install(word, 2, rankset.Of(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := int64(1)
			for ; fencedAt(t, n, act); n++ {
			}
			require.Greater(t, n, int64(5))
		})
	}
}

// fencedAt reports whether rank 0 looked at the member set n times.
func fencedAt(t *testing.T, n int64, act func(domain.MemberWord)) bool {
	doms := newDomains(2, rankset.Of(0, 1))
	watched := &watchedDomain{Domain: doms[0], act: act}
	w := &world{t: t, doms: []domain.Domain{watched, doms[1]}, bufs: make([]*cpu.Buffer, 2)}
	for r, dom := range w.doms {
		b, err := cpu.New(dom, kernels.NewReference(), ep.Config{NumBytes: 16 << 20})
		require.NoError(t, err)
		w.bufs[r] = b
		defer func() { _ = b.Close() }()
	}
	ins := []input{pairInput(0), pairInput(1)}
	peer := make(chan error, 1)
	go func() { _, err := w.exchange(1, pair, ins, time.Second); peer <- err }()
	watched.left.Store(n)
	err := w.completeOrFenced(ins)
	passed := watched.left.Load() <= 0
	watched.left.Store(0)
	if err := within(t, peer); err != nil && !errors.Is(err, ep.ErrFenced) {
		require.NoError(t, err)
	}
	require.NoError(t, err, "fenced at look %d", n)
	return passed
}

// completeOrFenced runs rank 0's part of an exchange. Fenced is no error.
func (w *world) completeOrFenced(ins []input) error {
	d, mask := new(dispatched), ones(2)
	a := w.args(0, pair, &ins[0], d)
	a.ActiveRanks = mask
	_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
	if err == nil && fmt.Sprint(mask) != "[1 1]" {
		return fmt.Errorf("a dispatch without error has mask %v", mask)
	}
	if err == nil {
		err = d.check(0, pair, ins)
	}
	if err == nil {
		d.compute(0, pair)
		out, combined := w.combine(0, pair, &ins[0], d)
		if err = combined; err == nil && !bytes.Equal(out, wantCombine(&ins[0], pair.hidden, pair.topk, alive)) {
			err = errors.New("a combine without error differs from the oracle")
		}
	}
	if errors.Is(err, ep.ErrFenced) {
		return nil
	}
	return err
}

// fenceZero takes rank 0 out of the group.
func fenceZero(word domain.MemberWord) { membership.Fence(word, 1, 1, 0) }
