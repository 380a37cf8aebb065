// Two processes exchange tokens through the Go packages: no C, no Python.
//
//	go run ./examples/go
//
// The parent starts the two ranks, passes their metadata around, and prints
// what they say. Each rank has three tokens and one expert; expert e
// multiplies by e + 1, and every token goes to both experts with weight 1/2.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport/shm"
)

const (
	numRanks = 2
	tokens   = 3
	hidden   = 8
	topK     = 2
)

func main() {
	log.SetFlags(0)
	run := parent
	if len(os.Args) == 2 {
		run = child
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// parent starts the ranks and is their rendezvous point.
func parent() error {
	var ins []io.Writer
	var outs []*bufio.Scanner
	var cmds []*exec.Cmd
	for r := range numRanks {
		cmd := exec.Command(os.Args[0], strconv.Itoa(r))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		ins, outs, cmds = append(ins, in), append(outs, bufio.NewScanner(out)), append(cmds, cmd)
	}
	all := make([]string, numRanks)
	for r, out := range outs {
		out.Scan()
		all[r] = out.Text()
	}
	for _, in := range ins {
		fmt.Fprintln(in, strings.Join(all, " "))
	}
	for r, out := range outs {
		for out.Scan() {
			fmt.Printf("rank %d: %s\n", r, out.Text())
		}
		if err := cmds[r].Wait(); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

// child is one rank.
func child() error {
	rank, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	buf, err := connect(rank)
	if err != nil {
		return err
	}
	defer buf.Close()
	got, err := exchange(buf, rank)
	if err != nil {
		return err
	}
	for t, v := range got {
		want := float32(10*rank+t) * 1.5 // (1 + 2) / 2
		fmt.Printf("token %d: %g came back as %g, want %g\n", t, float32(10*rank+t), v, want)
		if v != want {
			return fmt.Errorf("token %d is wrong", t)
		}
	}
	return nil
}

// connect makes this rank's buffer; the parent passes the metadata around.
func connect(rank int) (*ep.Buffer, error) {
	cfg := ep.Config{}
	params, err := cfg.Params(ep.Standing{})
	if err != nil {
		return nil, err
	}
	l, err := shm.Open(shm.Config{Rank: rank, NumRanks: numRanks, ControlBytes: layout.ControlBytes, ABIVersion: 1, Params: params})
	if err != nil {
		return nil, err
	}
	fmt.Println(hex.EncodeToString(l.Metadata()))
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, text := range strings.Fields(line) {
		m, err := hex.DecodeString(text)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	dom, err := l.Connect(all, 10*time.Second)
	if err != nil {
		return nil, err
	}
	kern, err := cpu.New(0)
	if err != nil {
		return nil, err
	}
	return ep.New(dom, kern, cfg)
}

// exchange sends the tokens to the experts and brings their outputs back.
func exchange(buf *ep.Buffer, rank int) ([]float32, error) {
	x, topk, weights := make([]byte, tokens*hidden*2), []int64{}, []float32{}
	for t := range tokens {
		for h := range hidden {
			putBF16(x[(t*hidden+h)*2:], float32(10*rank+t))
		}
		topk, weights = append(topk, 0, 1), append(weights, 0.5, 0.5)
	}
	counts, ranges := make([]int32, 1), make([]int64, numRanks)
	var res ep.Result
	if _, err := buf.Dispatch(&ep.DispatchArgs{
		X: x, TopkIdx: topk, NumTokens: tokens, Hidden: hidden, TopK: topK, MaxTokens: tokens, NumExperts: numRanks,
		RecvCount: counts, LayoutRange: ranges, Timeout: 10 * time.Second,
	}, &res, ep.PhaseDone, -1); err != nil {
		return nil, err
	}
	for i := range int(counts[0]) * hidden { // this rank's expert
		putBF16(res.CombineX[2*i:], getBF16(res.RecvX[2*i:])*float32(rank+1))
	}
	out := make([]byte, tokens*hidden*2)
	if _, err := buf.Combine(res.Op, &ep.CombineArgs{
		X: res.CombineX, ZeroCopy: true, TopkIdx: topk, TopkWeights: weights, Out: out,
		NumTokens: tokens, TopK: topK, Timeout: 10 * time.Second,
	}, ep.PhaseDone, -1); err != nil {
		return nil, err
	}
	first := make([]float32, tokens)
	for t := range first {
		first[t] = getBF16(out[t*hidden*2:])
	}
	return first, nil
}

// The numbers here are small integers and halves: bf16 holds them exactly.
func putBF16(b []byte, v float32) {
	binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(v)>>16))
}

func getBF16(b []byte) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
}
