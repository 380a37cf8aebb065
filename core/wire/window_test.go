package wire

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newRand is a source whose seed is printed when the test fails, and set by
// MOEWIRE_TEST_SEED.
func newRand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("MOEWIRE_TEST_SEED"); text != "" {
		given, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seed = given
	}
	t.Logf("MOEWIRE_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// seen is the window without a bound: every number that was received.
type seen struct {
	highest uint64
	numbers map[uint64]bool
}

func (s *seen) isNew(seq uint64) bool {
	tooOld := s.highest >= WindowNum && seq <= s.highest-WindowNum
	return seq > 0 && !tooOld && !s.numbers[seq]
}

// WF1, WF7: the bitmap says what a list of everything says.
func TestWF1WindowAgainstList(t *testing.T) {
	src := newRand(t)
	for range 200 {
		var w window
		s := seen{numbers: map[uint64]bool{}}
		at := src.Uint64N(3)
		if src.IntN(4) == 0 {
			at = 1<<63 + src.Uint64N(1<<62)
		}
		for range 400 {
			at += steps[src.IntN(len(steps))]
			seq := at - min(at, src.Uint64N(WindowNum+3)*src.Uint64N(2))
			require.Equal(t, s.isNew(seq), w.check(seq) == nil, "%d after %d", seq, s.highest)
			if s.isNew(seq) {
				w.mark(seq)
				s.numbers[seq] = true
				s.highest = max(s.highest, seq)
			}
		}
	}
}

// steps are how far numbers go on at once.
var steps = []uint64{0, 0, 1, 1, 1, 2, 63, 64, 65, WindowNum - 1, WindowNum, WindowNum + 1, 3 * WindowNum}

// WF1: the oldest number that is still accepted, and the one before it.
func TestWF1WindowEdge(t *testing.T) {
	client, server := sessions(t)
	var frames [][]byte
	for range WindowNum + 1 {
		frames = append(frames, sealed(t, client, Head{Code: 1}))
	}
	_, err := server.OpenHead(frames[WindowNum])
	require.NoError(t, err)
	refused(t, server, frames[0], ErrReplay)
	for _, frame := range frames[1:WindowNum] {
		_, err := server.OpenHead(frame)
		require.NoError(t, err)
	}
	for _, frame := range frames {
		refused(t, server, frame, ErrReplay)
	}
}

// The greatest number there is does not turn the window over.
func TestWindowAtTheEnd(t *testing.T) {
	var w window
	w.mark(^uint64(0) - 1)
	require.NoError(t, w.check(^uint64(0)))
	w.mark(^uint64(0))
	require.ErrorIs(t, w.check(^uint64(0)), ErrReplay)
	require.ErrorIs(t, w.check(^uint64(0)-1), ErrReplay)
	require.NoError(t, w.check(^uint64(0)-2))
	require.ErrorIs(t, w.check(1), ErrReplay)
}

// WF7: what comes a little late is accepted for ever, although every bit of
// the window has been used before.
func TestWF7LateForEver(t *testing.T) {
	for behind := uint64(1); behind < 5; behind++ {
		var w window
		for seq := uint64(1); seq < 4*WindowNum; seq += behind + 1 {
			for n := range behind + 1 {
				next := seq + behind - n // each group backwards
				require.NoError(t, w.check(next), next)
				w.mark(next)
				require.ErrorIs(t, w.check(next), ErrReplay)
			}
		}
	}
}
