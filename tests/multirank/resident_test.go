package multirank

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
)

// residentShape is a shape with a worst case far above what is sent.
type residentShape struct{ tokens, max, hidden, topk, experts int }

// smallResident is large enough that rows outweigh words; largeResident is a
// decoding step of a model with 256 experts.
var (
	smallResident = residentShape{tokens: 64, max: 4096, hidden: 1024, topk: 4, experts: 16}
	largeResident = residentShape{tokens: 128, max: 128, hidden: 7168, topk: 8, experts: 256}
)

// TestResident: a worst-case shape of 1 GiB per rank is address space; what
// becomes resident follows the formula of docs/architecture.md, and stays when
// the routing repeats.
func TestResident(t *testing.T) {
	startGroup(t, "resident", 2).wait(time.Minute)
}

// TestResidentLarge: eight ranks with 1.9 GB of address space each take, all
// together, the memory that the formula gives for what they send.
func TestResidentLarge(t *testing.T) {
	const ranks = 8
	g := startGroup(t, "resident large", ranks)
	g.await("measured", time.Minute)
	g.wait(time.Minute)
	total := int64(0)
	for _, l := range g.logs {
		bytes, err := strconv.ParseInt(l.lines[0], 10, 64)
		require.NoError(t, err)
		total += bytes
	}
	hint, err := layout.SizeHint(layout.Shape{MaxTokens: 128, Hidden: 7168, NumExperts: 256, NumRanks: ranks}, ep.DefaultSlots)
	require.NoError(t, err)
	share := int64(128 * 8 * ranks / 256)
	limit := ranks * largeResident.owner(ranks, share)
	t.Logf("address space %d bytes per rank; resident %d bytes in all, %d per rank; the formula allows %d",
		hint, total, total/ranks, limit/ranks)
	require.LessOrEqual(t, total, limit)
	require.Greater(t, total, ranks*ep.DefaultSlots*share*256/ranks*4*7168, "less than was sent: measured wrongly")
	require.Less(t, total, int64(24)<<30)
}

func init() { roles["resident"], roles["resident large"] = resident, residentLarge }

func resident(e *env) error {
	shape := smallResident
	counts := make([]int32, shape.experts/e.ranks)
	fullest, first := int64(0), int64(0)
	for i := range 20 {
		if err := e.residentStep(shape, counts); err != nil {
			return err
		}
		for _, n := range counts {
			fullest = max(fullest, int64(n))
		}
		used, err := kernelCount("status", "RssShmem:")
		if err != nil {
			return err
		}
		if limit := int64(e.ranks) * shape.owner(int64(e.ranks), fullest); used > limit {
			return fmt.Errorf("%d bytes of shared memory are resident, the formula allows %d", used, limit)
		}
		if i == 3 {
			first = used
		}
		if i > 3 && used != first {
			return fmt.Errorf("resident shared memory went from %d to %d bytes on the same routing", first, used)
		}
	}
	return nil
}

// residentLarge uses every slot, and reports its part of the memory while all
// ranks still have theirs mapped.
func residentLarge(e *env) error {
	for range 2 * ep.DefaultSlots {
		if err := e.residentStep(largeResident, make([]int32, largeResident.experts/e.ranks)); err != nil {
			return err
		}
	}
	if _, err := e.exchange("ran", nil); err != nil {
		return err
	}
	// Shared pages are counted in parts, so that the sum over ranks is the memory.
	used, err := kernelCount("smaps_rollup", "Pss_Shmem:")
	if err != nil {
		return err
	}
	e.say(strconv.FormatInt(used, 10))
	e.say("measured")
	_, err = e.exchange("measured", binary.LittleEndian.AppendUint64(nil, uint64(used)))
	return err
}

// residentStep is one dispatch and combine with the same routing every time:
// every expert gets as many rows as every other.
func (e *env) residentStep(s residentShape, counts []int32) error {
	topk, weights := make([]int64, s.tokens*s.topk), make([]float32, s.tokens*s.topk)
	for i := range topk {
		topk[i] = int64(i * 5 % s.experts)
	}
	var res ep.Result
	_, err := e.buf.Dispatch(&ep.DispatchArgs{
		X: make([]byte, s.tokens*s.hidden*2), TopkIdx: topk, NumTokens: s.tokens,
		Hidden: s.hidden, TopK: s.topk, MaxTokens: s.max, NumExperts: s.experts,
		RecvCount: counts, LayoutRange: make([]int64, s.experts), Timeout: time.Minute,
	}, &res, ep.PhaseDone, -1)
	if err != nil {
		return err
	}
	_, err = e.buf.Combine(res.Op, &ep.CombineArgs{
		X: res.CombineX, TopkIdx: topk, TopkWeights: weights, Out: make([]byte, s.tokens*s.hidden*2),
		NumTokens: s.tokens, TopK: s.topk, Timeout: time.Minute,
	}, ep.PhaseDone, -1)
	return err
}

// owner is the bound of docs/architecture.md for the memory of one rank, of
// which every process may have all mapped.
func (s residentShape) owner(ranks, fullest int64) int64 {
	share := int64(s.tokens) * ranks * int64(s.topk) * 5 / 4 / int64(s.experts)
	rows := max(fullest, share+1)
	perExpert := rows*(4*int64(s.hidden)+4) + 3*2*layout.PageBytes // three regions, both ends
	slab := layout.HeaderBytes + int64(s.experts)/ranks*perExpert + 2*layout.PageBytes
	return ep.DefaultSlots*slab + layout.ControlBytes + 8*layout.PageBytes
}

// kernelCount is what the kernel says of this process's memory.
func kernelCount(file, name string) (int64, error) {
	text, err := os.ReadFile("/proc/self/" + file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc/self/%s", name, file)
}
