package cuda_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
)

// TestHostsReasonOfTimeout: rank 0 alone has a deadline. Where hosts agree that rank 1 is out, the
// rank that has waited for it says that, once, and counts the loss; the others repeat it.
func TestHostsReasonOfTimeout(t *testing.T) {
	h := newHosts(t, "abc")
	all := ops(t, h.ranks, 190)
	roundOf(all)
	all[0].args.Timeout = 50 * time.Millisecond
	all[2].args.Timeout, all[2].combin.Timeout = -1, -1
	for _, o := range []*op{all[0], all[2]} {
		o.run()
	}
	for _, o := range []*op{all[0], all[2]} {
		o.r.sync()
		o.check(1)
	}
	why := func(r int) string { return strings.Join(whyLost(h.ranks[r], 1), "\n") }
	require.Eventually(t, func() bool { return why(0) != "" && why(2) != "" }, connectIn, time.Millisecond)
	require.Equal(t, ep.WhyTimedOut, why(0))
	require.Regexp(t, `^rank 0 says: it did not come before the deadline, after \d+ms in dispatch of operation 1$`, why(2))
	for r, want := range map[int]uint64{0: 1, 2: 0} {
		_, _, lost := h.ranks[r].Membership()
		require.Equal(t, want, lost, "rank %d", r)
	}
	require.Eventually(t, func() bool { return h.ranks[1].Err() != nil }, connectIn, time.Millisecond)
	require.ErrorIs(t, h.ranks[1].Err(), ep.ErrFenced)
	require.ErrorContains(t, h.ranks[1].Err(), "rank 0 says: it did not come before the deadline, after ")
}
