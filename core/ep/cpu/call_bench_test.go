package cpu_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/shm"
)

// BenchmarkEmptyCall is a dispatch of no tokens and its release, by a rank that
// is alone: what `moewire bench` measures through the C ABI as c_dispatch, so
// that the difference is what the C ABI costs.
func BenchmarkEmptyCall(b *testing.B) {
	b.Run("inproc", func(b *testing.B) { emptyCalls(b, inproc.New(1, layout.ControlBytes)[0]) })
	b.Run("shm", func(b *testing.B) { emptyCalls(b, aloneInSharedMemory(b)) })
}

func aloneInSharedMemory(b *testing.B) domain.Domain {
	l, err := shm.Open(shm.Config{NumRanks: 1, ControlBytes: layout.ControlBytes})
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	dom, err := l.Connect([][]byte{l.Metadata()}, time.Minute)
	require.NoError(b, err)
	return dom
}

func emptyCalls(b *testing.B, dom domain.Domain) {
	kern, err := kernels.New(kernels.Widest)
	require.NoError(b, err)
	buf, err := cpu.New(dom, kern, ep.Config{})
	require.NoError(b, err)
	b.Cleanup(func() { _ = buf.Close() })
	args := &ep.DispatchArgs{
		Hidden: 128, TopK: 1, MaxTokens: 1, NumExperts: 1,
		RecvCount: make([]int32, 1), LayoutRange: make([]int64, 1), Timeout: -1,
	}
	var res ep.Result
	b.ReportAllocs()
	for b.Loop() {
		if _, err := buf.Dispatch(args, &res, ep.PhaseDone, -1); err != nil {
			b.Fatal(err)
		}
		if err := buf.Release(res.Op); err != nil {
			b.Fatal(err)
		}
	}
}
