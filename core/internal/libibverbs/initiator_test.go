package libibverbs

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/sys"
)

// TestInitiatorAllocatesNothing builds requests by functions of C that do
// nothing. (Those of the carrier's fake are Go: calling them allocates.)
func TestInitiatorAllocatesNothing(t *testing.T) {
	c, err := dl.Open("libc.so.6")
	require.NoError(t, err)
	nothing, err := c.Lookup("sched_yield") // takes nothing, returns 0
	require.NoError(t, err)
	memory, err := sys.MapAnonymous(4096)
	require.NoError(t, err)
	defer func() { require.NoError(t, memory.Unmap()) }()
	at := uintptr(unsafe.Pointer(unsafe.SliceData(memory.Bytes())))
	f := uintptr(nothing)
	head := dl.At[QPExHead](at)
	*head = QPExHead{
		RDMARead: f, RDMAWrite: f, RDMAWriteImm: f, Send: f, SetInlineData: f, SetSGEList: f, Start: f, Complete: f,
	}
	dl.At[Mlx5QPExHead](at + 1024).SetDCAddr = f
	identity := dl.Fake(map[string]any{
		"same":  func(qp uintptr) uintptr { return qp },
		"other": func(qp uintptr) uintptr { return qp + 1024 },
	})
	m := &Mlx5{}
	require.NoError(t, identity.LookupAll(map[string]*dl.Func{"same": &m.toQPEx, "other": &m.fromQPEx}))
	i, err := m.Initiator(QP(at))
	require.NoError(t, err)

	requests := []SendWR{
		{WRID: 1, Opcode: WRRDMAWrite, SendFlags: SendSignaled}, {WRID: 2, Opcode: WRRDMAWriteWithImm}, {WRID: 3, Opcode: WRSend},
		{WRID: 4, Opcode: WRRDMARead}, {WRID: 5, Opcode: WRSend, SendFlags: SendSignaled | SendInline, NumSGE: 1, SGList: at + 2048},
	}
	to := &DCTarget{AH: 1, Number: 2, Key: 3}
	num := testing.AllocsPerRun(100, func() {
		i.Begin()
		for k := range requests {
			i.Add(&requests[k], to)
		}
		if i.End() != 0 {
			t.Error("refused")
		}
	})
	if !raceEnabled { // the race detector empties pools
		assert.Zero(t, num)
	}
	assert.EqualValues(t, 5, head.WRID)
	assert.EqualValues(t, SendSignaled, head.WRFlags)

	head.SetSGEList = 0
	_, err = m.Initiator(QP(at))
	require.ErrorContains(t, err, "functions of the queue pair")
}
