package multirank

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
)

// Shape of the residency test: large enough that rows outweigh words.
const (
	residentTokens  = 64
	residentMax     = 4096 // worst case: 16 times what is sent
	residentHidden  = 1024
	residentTopK    = 4
	residentExperts = 16
)

// TestResident: a worst-case shape of 1 GiB per rank is address space; what
// becomes resident follows the formula of docs/architecture.md, and stays when
// the routing repeats.
func TestResident(t *testing.T) {
	startGroup(t, "resident", 2).wait(time.Minute)
}

func init() { roles["resident"] = resident }

func resident(e *env) error {
	counts := make([]int32, residentExperts/e.ranks)
	fullest, first := int64(0), int64(0)
	for i := range 20 {
		if err := e.residentStep(counts); err != nil {
			return err
		}
		for _, n := range counts {
			fullest = max(fullest, int64(n))
		}
		used, err := shmBytes()
		if err != nil {
			return err
		}
		if limit := residentFormula(int64(e.ranks), fullest); used > limit {
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

// residentStep is one dispatch and combine with the same routing every time.
func (e *env) residentStep(counts []int32) error {
	topk, weights := make([]int64, residentTokens*residentTopK), make([]float32, residentTokens*residentTopK)
	for i := range topk {
		topk[i] = int64(i * 5 % residentExperts)
	}
	var res ep.Result
	_, err := e.buf.Dispatch(&ep.DispatchArgs{
		X: make([]byte, residentTokens*residentHidden*2), TopkIdx: topk, NumTokens: residentTokens,
		Hidden: residentHidden, TopK: residentTopK, MaxTokens: residentMax, NumExperts: residentExperts,
		RecvCount: counts, LayoutRange: make([]int64, residentExperts), Timeout: time.Minute,
	}, &res, ep.PhaseDone, -1)
	if err != nil {
		return err
	}
	_, err = e.buf.Combine(res.Op, &ep.CombineArgs{
		X: res.CombineX, TopkIdx: topk, TopkWeights: weights, Out: make([]byte, residentTokens*residentHidden*2),
		NumTokens: residentTokens, TopK: residentTopK, Timeout: time.Minute,
	}, ep.PhaseDone, -1)
	return err
}

// residentFormula is the bound of docs/architecture.md for one process.
func residentFormula(ranks, fullest int64) int64 {
	share := int64(residentTokens) * ranks * residentTopK * 5 / 4 / residentExperts
	rows := max(fullest, share+1)
	perExpert := rows*(4*residentHidden+4) + 3*2*layout.PageBytes // three regions, both ends
	slab := layout.HeaderBytes + residentExperts/ranks*perExpert + 2*layout.PageBytes
	control := int64(layout.ControlBytes + 8*layout.PageBytes)
	return ranks * (ep.DefaultSlots*slab + control)
}

// shmBytes is the resident shared memory of this process, as the kernel counts.
func shmBytes() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssShmem:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no RssShmem in /proc/self/status")
}
