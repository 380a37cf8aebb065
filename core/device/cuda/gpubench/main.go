// Command gpubench times the engine on a GPU: several logical ranks of one
// process on one device. `make gpu-bench` runs it and says what its numbers mean.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"

	"github.com/moewire/moewire/core/ep/protocol"
)

type options struct {
	driver                        string
	ranks, tokens, hidden         int
	topK, experts                 int
	fp8, emulated                 bool
	baseline, probes              bool
	opsPerGraph, replays, hostOps int
	copyBytes, ordinal            int
	loads                         int
}

func (o *options) rowType() protocol.DType {
	if o.fp8 {
		return protocol.FP8
	}
	return protocol.BF16
}

func main() {
	var o options
	flag.StringVar(&o.driver, "driver", "", "the driver's `library`, instead of libcuda.so.1")
	flag.IntVar(&o.ordinal, "device", 0, "")
	flag.IntVar(&o.ranks, "ranks", 8, "")
	flag.IntVar(&o.tokens, "tokens", 1024, "per rank")
	flag.IntVar(&o.hidden, "hidden", 7168, "")
	flag.IntVar(&o.topK, "topk", 8, "")
	flag.IntVar(&o.experts, "experts", 256, "of all ranks")
	flag.BoolVar(&o.fp8, "fp8", false, "dispatch casts rows")
	flag.IntVar(&o.opsPerGraph, "ops", 10, "operations in a graph")
	flag.IntVar(&o.replays, "replays", 10, "")
	flag.IntVar(&o.hostOps, "host-ops", 20, "operations whose launches the host is timed for")
	flag.IntVar(&o.copyBytes, "copy", 1<<30, "bytes of the plain device copy")
	flag.BoolVar(&o.emulated, "emulated", false, "the driver is the emulator: the numbers mean nothing")
	flag.BoolVar(&o.baseline, "baseline", false, "time the baseline of four copies instead of the engine")
	flag.BoolVar(&o.probes, "probes", false, "time nothing, but ask the device what the engine takes for granted")
	flag.IntVar(&o.loads, "loads", 0, "forces a variant: 1 narrow, 2 usual, 3 deep; 0 chooses by shape")
	flag.Parse()
	runtime.LockOSThread()
	result, err := o.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		if errors.Is(err, errNoMemory) {
			os.Exit(3)
		}
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run gives what is written as one line.
func (o *options) run() (any, error) {
	switch {
	case o.probes:
		return runProbes(o)
	case o.baseline:
		return runBaseline(o)
	}
	return run(o)
}
