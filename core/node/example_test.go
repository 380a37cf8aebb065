package node_test

import (
	"fmt"
	"log"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/node"
)

// A group of one rank: two tokens of 8 values go to one expert and come back.
func Example() {
	buf, err := node.New(node.Config{Rank: 0, NumRanks: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer buf.Close()
	all := [][]byte{buf.Metadata()} // of every rank, by a store that they share
	if err := buf.Connect(all, node.ConnectTimeout); err != nil {
		log.Fatal(err)
	}

	var res node.Result
	counts := make([]int32, 1)
	if _, err := buf.Dispatch(&ep.DispatchArgs{
		X: make([]byte, 2*8*2), TopkIdx: []int64{0, 0}, NumTokens: 2, Hidden: 8, TopK: 1, MaxTokens: 2, NumExperts: 1,
		RecvCount: counts, LayoutRange: make([]int64, 1), Timeout: time.Second,
	}, &res, ep.PhaseDone, -1); err != nil {
		log.Fatal(err)
	}
	copy(res.CombineX, res.RecvX) // the expert
	if _, err := buf.Combine(res.Handle, &ep.CombineArgs{
		X: res.CombineX, ZeroCopy: true, TopkIdx: []int64{0, 0}, TopkWeights: []float32{1, 1}, Out: make([]byte, 2*8*2),
		NumTokens: 2, TopK: 1, Timeout: time.Second,
	}, ep.PhaseDone, -1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(counts[0], "rows")
	// Output: 2 rows
}

// The ranks of an epoch meet again, here the same ones: another epoch begins.
func ExampleBuffer_Update() {
	buf, err := node.New(node.Config{Rank: 0, NumRanks: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer buf.Close()
	for _, step := range []func() error{
		func() error { return buf.Connect([][]byte{buf.Metadata()}, time.Second) },
		buf.Update,
		func() error { return buf.Connect([][]byte{buf.Metadata()}, time.Second) },
		buf.Install, // once every rank is known to have connected
	} {
		if err := step(); err != nil {
			log.Fatal(err)
		}
	}
	_, epoch, lost, err := buf.Membership()
	fmt.Println(epoch, lost, err)
	// Output: 2 0 <nil>
}
