package cpu_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
)

func formOf(preReduce bool) uint32 {
	if preReduce {
		return 1
	}
	return 0
}

// outputsMessage is a piece of rank 1's outputs for rank 0's first combine:
// rows of ones.
func outputsMessage(form uint32, total, first, rows int) []byte {
	msg := make([]byte, 64)
	head(msg, 3, 1, 1, 0, 0)
	binary.LittleEndian.PutUint64(msg[16:], protocol.Counted(0, 1, false))
	for i, v := range []uint32{uint32(total), uint32(first), uint32(rows), form} {
		binary.LittleEndian.PutUint32(msg[24+4*i:], v)
	}
	for range rows * small.hidden {
		msg = append(msg, 0x80, 0x3f)
	}
	return msg
}

// TestRemotePreReduceMessages: outputs made by the table in docs/wire.md are taken in the
// form that was asked for, and in no other.
func TestRemotePreReduceMessages(t *testing.T) {
	for _, preReduce := range []bool{false, true} {
		a := newAlone(t, false, preReduce)
		s := small
		s.preReduce = preReduce
		a.send(controlWordsMessage(1<<16, 0, 0))
		a.send(a.rowsMessage(!preReduce)) // what it asks for is its own choice
		require.NoError(t, a.p.Wait(ep.PhaseDone, 5*time.Second))
		require.NoError(t, a.p.Result(&a.d.res))
		a.d.compute(0, s)
		a.combine()
		require.NotNil(t, a.c)
		tokens, pairs, _ := goesTo(&a.in, s, 1)
		require.Less(t, tokens, pairs, "else both forms have as many rows")
		n, other := int(pairs), int(tokens)
		if preReduce {
			n, other = other, n
		}
		for i, bad := range [][]byte{
			outputsMessage(formOf(!preReduce), n, 0, n), outputsMessage(formOf(!preReduce), other, 0, other),
			outputsMessage(formOf(preReduce), other, 0, other), outputsMessage(2, n, 0, n),
			outputsMessage(formOf(preReduce), n, 0, n)[:64+31], outputsMessage(formOf(!preReduce), 0, 0, 0),
			outputsMessage(formOf(preReduce), n, 1, n-1),
		} {
			before := a.bufs[0].Counters().NumMessagesDropped
			a.send(bad)
			a.combine()
			require.Eventually(t, func() bool { return a.bufs[0].Counters().NumMessagesDropped == before+1 },
				5*time.Second, time.Millisecond, "message %d, preReduce %v", i, preReduce)
			require.ErrorIs(t, a.c.Wait(ep.PhaseDone, 0), ep.ErrInProgress)
		}
		a.send(outputsMessage(formOf(preReduce), n, 0, 1)) // in two pieces
		next := outputsMessage(formOf(!preReduce), n, 0, n)
		binary.LittleEndian.PutUint64(next[16:], protocol.Counted(0, 2, false))
		a.send(next) // wrong, and of another combine: the first one goes on
		a.send(outputsMessage(formOf(preReduce), n, 1, n-1))
		require.NoError(t, a.c.Wait(ep.PhaseDone, 5*time.Second))
		y := func(token int, e int64, h int) float32 {
			b := make([]byte, 2)
			expert(int(e), a.in.x[(token*s.hidden+h)*2:][:2], b)
			return bf16ToFloat(b)
		}
		require.NoError(t, differ(s, 0, a.out, a.wantOnes(s, y)))
	}
}

// wantOnes is the definition where rank 1's rows are ones: its sums if they are
// made there, else its experts' answers.
func (a *alone) wantOnes(s shape, y func(token int, e int64, h int) float32) []byte {
	if !s.preReduce {
		return s.wantAny(&a.in, alive, func(token int, e int64, h int) float32 {
			if e >= 2 {
				return 1
			}
			return y(token, e, h)
		})
	}
	// One selection of rank 1 with weight 1 stands for all.
	in := a.in
	in.topk, in.weights = append([]int64(nil), in.topk...), append([]float32(nil), in.weights...)
	for t := range in.tokens {
		found := false
		for k, id := range in.topk[t*s.topk:][:s.topk] {
			if id < 2 {
				continue
			}
			in.weights[t*s.topk+k] = 1
			if found {
				in.topk[t*s.topk+k] = -1
			}
			found = true
		}
	}
	return s.wantPreReduce(&in, alive, func(token int, e int64, h int) float32 {
		if e >= 2 {
			return 1
		}
		return y(token, e, h)
	})
}

// TestRemotePreReduceRows: a row may name an expert twice and has at most K entries.
func TestRemotePreReduceRows(t *testing.T) {
	for _, c := range []struct {
		len     byte
		entries []uint16
		counts  [2]uint32
		fine    bool
	}{
		{2, []uint16{1, 1}, [2]uint32{0, 1}, true},
		{2, []uint16{0, 1}, [2]uint32{1, 1}, true},
		{2, []uint16{1, 1}, [2]uint32{0, 2}, false},
		{2, []uint16{1, 0}, [2]uint32{0, 1}, false},
		{2, []uint16{1, 2}, [2]uint32{0, 1}, false},
		{3, []uint16{1, 1, 1}, [2]uint32{0, 1}, false}, // K is 2
		{1, []uint16{1, 1}, [2]uint32{0, 1}, false},
		{0, nil, [2]uint32{0, 0}, false},
	} {
		a := newAlone(t, false, false)
		msg := make([]byte, 96)
		head(msg, 2, 1, 1, 0, 0)
		for i, v := range []uint64{1, uint64(small.maxTokens), uint64(small.hidden), uint64(small.experts), 1 << 7, 2, 4, 0} {
			binary.LittleEndian.PutUint64(msg[16+8*i:], v)
		}
		for i, v := range []int{1, 0, 1, len(c.entries)} {
			binary.LittleEndian.PutUint32(msg[80+4*i:], uint32(v))
		}
		align := func(n int) {
			for len(msg)%n != 0 {
				msg = append(msg, 0)
			}
		}
		for _, n := range c.counts {
			msg = binary.LittleEndian.AppendUint32(msg, n)
		}
		msg = append(msg, 3, 0, 0, 0, 0, 0, 0, 0, c.len) // token 3
		align(8)
		for _, e := range c.entries {
			msg = binary.LittleEndian.AppendUint16(msg, e)
		}
		align(8)
		msg = append(msg, make([]byte, 4*len(c.entries))...)
		align(64)
		msg = append(msg, make([]byte, small.hidden*2)...)
		a.send(controlWordsMessage(1<<16, 0, 0))
		a.send(msg)
		if c.fine {
			require.NoError(t, a.p.Wait(ep.PhaseDone, 5*time.Second), "%+v", c)
			require.Zero(t, a.bufs[0].Counters().NumMessagesDropped)
			continue
		}
		require.Eventually(t, func() bool { return a.bufs[0].Counters().NumMessagesDropped == 1 }, 5*time.Second, time.Millisecond, "%+v", c)
	}
}
