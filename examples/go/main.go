// Two ranks exchange tokens through the Go packages: no C, no Python.
//
//	go run ./examples/go
//
// Each rank is a process that treats the other one as a rank of another host: tokens go
// over TCP, here the loopback interface. On two machines each gives an address of its own
// as Listen, and leaves Host empty. The parent starts the ranks, passes their metadata
// around, and prints what they say. Each rank has three tokens and one expert; expert e
// multiplies by e + 1, and every token goes to both experts with weight 1/2.
package main

import (
	"bufio"
	"crypto/rand"
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

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/node"
)

const (
	numRanks = 2
	tokens   = 3
	hidden   = 8
	topK     = 2
	timeout  = 10 * time.Second
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

// process is a rank, as the parent sees it.
type process struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func start(rank int, keys string) (p process, err error) {
	p.Cmd = exec.Command(os.Args[0], strconv.Itoa(rank))
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		return p, err
	}
	if p.in, err = p.StdinPipe(); err != nil {
		return p, err
	}
	if err := p.Start(); err != nil {
		return p, err
	}
	p.out = bufio.NewScanner(out)
	_, err = fmt.Fprintln(p.in, keys)
	return p, err
}

// parent starts the ranks and is their rendezvous point. It gives both the same key, as a
// secret store would.
func parent() error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	var ranks [numRanks]process
	var all [numRanks]string
	for r := range ranks {
		var err error
		if ranks[r], err = start(r, "1 "+hex.EncodeToString(key)); err != nil {
			return err
		}
	}
	for r := range ranks {
		ranks[r].out.Scan()
		all[r] = ranks[r].out.Text()
	}
	for r := range ranks {
		fmt.Fprintln(ranks[r].in, strings.Join(all[:], " "))
	}
	for r, p := range ranks {
		for p.out.Scan() {
			fmt.Printf("rank %d: %s\n", r, p.out.Text())
		}
		if err := p.Wait(); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return nil
}

// child is one rank. It gets the keys and then the metadata of all ranks, a line each.
func child() error {
	rank, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Scan()
	buf, err := node.New(node.Config{Rank: rank, NumRanks: numRanks, Hosts: node.Hosts{
		Host: fmt.Sprintf("host %d", rank), Listen: "127.0.0.1", Keys: lines.Bytes(),
	}})
	if err != nil {
		return err
	}
	defer buf.Close()
	fmt.Println(hex.EncodeToString(buf.Metadata()))
	lines.Scan()
	var all [][]byte
	for _, text := range strings.Fields(lines.Text()) {
		m, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	if err := buf.Connect(all, timeout); err != nil {
		return err
	}
	return report(buf)
}

// report says how the other rank is reached, and what came back.
func report(buf *node.Buffer) error {
	rank := buf.Rank()
	paths, err := buf.Paths()
	if err != nil {
		return err
	}
	fmt.Printf("rank %d is reached by %s\n", 1-rank, paths[1-rank].Carrier)
	got, err := exchange(buf)
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

// exchange sends the tokens to the experts and brings their outputs back.
func exchange(buf *node.Buffer) ([]float32, error) {
	x, topk, weights := inputs(buf.Rank())
	counts, ranges := make([]int32, 1), make([]int64, numRanks)
	var res node.Result
	if _, err := buf.Dispatch(&ep.DispatchArgs{
		X: x, TopkIdx: topk, NumTokens: tokens, Hidden: hidden, TopK: topK, MaxTokens: tokens, NumExperts: numRanks,
		RecvCount: counts, LayoutRange: ranges, Timeout: timeout,
	}, &res, ep.PhaseDone, -1); err != nil {
		return nil, err
	}
	for i := range int(counts[0]) * hidden { // this rank's expert
		putBF16(res.CombineX[2*i:], getBF16(res.RecvX[2*i:])*float32(buf.Rank()+1))
	}
	out := make([]byte, tokens*hidden*2)
	if _, err := buf.Combine(res.Handle, &ep.CombineArgs{
		X: res.CombineX, ZeroCopy: true, TopkIdx: topk, TopkWeights: weights, Out: out,
		NumTokens: tokens, TopK: topK, Timeout: timeout,
	}, ep.PhaseDone, -1); err != nil {
		return nil, err
	}
	first := make([]float32, tokens)
	for t := range first {
		first[t] = getBF16(out[t*hidden*2:])
	}
	return first, nil
}

// inputs are a rank's tokens, the experts that they go to, and the weights.
func inputs(rank int) (x []byte, topk []int64, weights []float32) {
	x = make([]byte, tokens*hidden*2)
	for t := range tokens {
		for h := range hidden {
			putBF16(x[(t*hidden+h)*2:], float32(10*rank+t))
		}
		topk, weights = append(topk, 0, 1), append(weights, 0.5, 0.5)
	}
	return x, topk, weights
}

// The numbers here are small integers and halves: bf16 holds them exactly.
func putBF16(b []byte, v float32) {
	binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(v)>>16))
}

func getBF16(b []byte) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
}
