package cuda

import (
	"fmt"
	"runtime"

	"github.com/moewire/moewire/core/ep/protocol"
)

// Moves copies rows between places in the memory of this rank's device. Nothing of it is checked.
type Moves struct {
	From, To uint64 // rows of RowBytes
	Table    uint64 // int32 [NumRows, 2]: which row goes where; the first negative: zeros
	NumRows  int
	RowBytes int
	Stream   uint64
}

// Sums adds up rows in the memory of this rank's device, in float32 and in the order of the terms.
// Nothing of it is checked, but how many terms there are.
type Sums struct {
	Rows       uint64                     // [.., Hidden]
	Bias       [protocol.NumBiases]uint64 // [NumSums, Hidden], added first; 0: none
	Terms      uint64                     // int32 [NumSums, NumTerms]: rows; negative: none
	Out        uint64                     // [NumSums, Hidden]
	Weights    uint64                     // float32 [.., TopK], of each row; 0: none are added up
	OutWeights uint64                     // float32 [NumSums, TopK]
	NumSums    int
	NumTerms   int // of a sum
	Hidden     int
	TopK       int
	RowType    protocol.DType // of rows and biases: bf16 or float32
	OutType    protocol.DType // bf16, or float32 with float32 rows
	Stream     uint64
}

// Move launches moves. They do nothing once the buffer has failed.
func (e *Engine) Move(m *Moves) error {
	if m.NumRows == 0 {
		return nil
	}
	lanes := movingLanes(m.RowBytes, e.threads.row)
	e.args.move = moveArgs{
		Common: e.base, From: m.From, To: m.To, Moves: m.Table, Num: int64(m.NumRows), Bytes: int64(m.RowBytes), Lanes: int64(lanes),
	}
	perBlock := int(e.threads.row / lanes)
	blocks := e.rowBlocks((m.NumRows + perBlock - 1) / perBlock)
	return e.inContext(func() error { return launch(e, m.Stream, kernelMove, blocks, e.threads.row, &e.args.move) })
}

// movingLanes is how many threads of a block move one row: a power of two, about as many as the row
// has pieces of 16 bytes.
func movingLanes(rowBytes int, most uint32) uint32 {
	lanes := uint32(1)
	for int(lanes)*16 < rowBytes && lanes < most {
		lanes *= 2
	}
	return lanes
}

// maxTerms is how many terms of a sum a block of threads lists.
const maxTerms = protocol.MaxTopK

// Sum launches sums. They do nothing once the buffer has failed.
func (e *Engine) Sum(s *Sums) error {
	if s.NumSums == 0 {
		return nil
	}
	terms := s.NumTerms
	for _, bias := range s.Bias {
		if bias != 0 {
			terms++
		}
	}
	if terms > maxTerms {
		return fmt.Errorf("a sum of %d rows and biases, at most %d are possible", terms, maxTerms)
	}
	e.args.sum = sumArgs{
		Common: e.base, Rows: s.Rows, Bias: s.Bias, Terms: s.Terms, Out: s.Out, Weights: s.Weights, OutWeights: s.OutWeights,
		Num: int64(s.NumSums), Width: int64(s.NumTerms),
	}
	e.args.sum.Common.Hidden, e.args.sum.Common.TopK = int32(s.Hidden), int32(s.TopK)
	blocks, threads := e.rowBlocks(s.NumSums), rowThreads(int32(s.Hidden), e.threads.row)
	return e.inContext(func() error { return launch(e, s.Stream, sumKernel(s), blocks, threads, &e.args.sum) })
}

func sumKernel(s *Sums) int {
	switch {
	case s.OutType == protocol.FP32:
		return kernelSumFP32Out
	case s.RowType == protocol.FP32:
		return kernelSumFP32
	}
	return kernelSum
}

// inContext launches with the device's context current.
func (e *Engine) inContext(launch func() error) error {
	runtime.LockOSThread()
	if err := e.calls.Push(e.d.ctx); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	return e.end(launch())
}
