package cpu_test

import (
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"slices"
	"sync"
	"time"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
)

// Two ranks of one process. Rank r owns expert r, which multiplies by r + 2. Each rank
// has one token, its own number + 1, and sends it to both experts with weight 1/2.
func Example() {
	buffers := exampleGroup(2)
	results := make([]float32, 2)
	eachRank(buffers, func(rank int, b *cpu.Buffer) error {
		call := exampleCall(rank, 2)
		var got ep.Result
		if _, err := b.Dispatch(&call, &got, ep.PhaseDone, -1); err != nil {
			return err
		}
		for i := range int(call.RecvCount[0]) * call.Hidden {
			writeBF16(got.CombineX, i, readBF16(got.RecvX, i)*float32(rank+2))
		}
		out := make([]byte, 2*call.Hidden)
		_, err := b.Combine(got.Op, &ep.CombineArgs{
			X: got.CombineX, ZeroCopy: true, TopkIdx: call.TopkIdx, TopkWeights: []float32{0.5, 0.5},
			Out: out, NumTokens: 1, TopK: 2, Timeout: time.Minute,
		}, ep.PhaseDone, -1)
		results[rank] = readBF16(out, 0)
		return err
	})
	fmt.Println(results)
	// Output: [2.5 5]
}

// A caller computes while its rows are on their way: Dispatch returns at PhaseSent, and
// the pending operation is waited for later.
func ExampleBuffer_Dispatch() {
	buffers := exampleGroup(2)
	received := make([]int32, 2)
	eachRank(buffers, func(rank int, b *cpu.Buffer) error {
		call := exampleCall(rank, 2)
		var got ep.Result
		pending, err := b.Dispatch(&call, &got, ep.PhaseSent, -1)
		if err != nil {
			return err
		}
		// The inputs may be overwritten from here on.
		if pending != nil {
			if err := pending.Wait(ep.PhaseDone, -1); err != nil {
				return err
			}
		}
		received[rank] = call.RecvCount[0]
		return b.Release(got.Op) // no combine comes
	})
	fmt.Println(received)
	// Output: [2 2]
}

// A rank leaves. The others' calls go on without it, and ActiveRanks says so.
func ExampleBuffer_Members() {
	buffers := exampleGroup(2)
	if err := buffers[1].Close(); err != nil {
		log.Fatal(err)
	}
	call := exampleCall(0, 2)
	call.ActiveRanks = []int32{1, 1}
	if _, err := buffers[0].Dispatch(&call, new(ep.Result), ep.PhaseDone, -1); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("active %v, rows %v, members %v\n", call.ActiveRanks, call.RecvCount, buffers[0].Members())
	// Output: active [1 0], rows [1], members {0}
}

// exampleGroup makes the buffers of a group in this process. Ranks in processes of their
// own meet with package core/group/shm: see examples/go.
func exampleGroup(ranks int) (buffers []*cpu.Buffer) {
	for _, domain := range inproc.New(ranks, layout.ControlBytes) {
		kernels, err := kernels.New(0)
		if err != nil {
			log.Fatal(err)
		}
		b, err := cpu.New(domain, kernels, ep.Config{})
		if err != nil {
			log.Fatal(err)
		}
		buffers = append(buffers, b)
	}
	return buffers
}

// exampleCall is a dispatch of one token to one expert of each rank.
func exampleCall(rank, ranks int) ep.DispatchArgs {
	const hidden = 8
	x := make([]byte, 2*hidden)
	for i := range hidden {
		writeBF16(x, i, float32(rank+1))
	}
	return ep.DispatchArgs{
		X: x, TopkIdx: []int64{0, 1}, NumTokens: 1, Hidden: hidden, TopK: 2, MaxTokens: 1, NumExperts: ranks,
		RecvCount: make([]int32, 1), LayoutRange: make([]int64, ranks), Timeout: time.Minute,
	}
}

func eachRank(buffers []*cpu.Buffer, run func(rank int, b *cpu.Buffer) error) {
	var all sync.WaitGroup
	for rank, b := range buffers {
		all.Go(func() {
			if err := run(rank, b); err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	for _, b := range slices.Backward(buffers) {
		_ = b.Close()
	}
}

func readBF16(b []byte, i int) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16)
}

func writeBF16(b []byte, i int, v float32) {
	binary.LittleEndian.PutUint16(b[2*i:], uint16(math.Float32bits(v)>>16))
}
