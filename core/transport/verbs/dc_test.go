package verbs

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
)

// withMlx5 gives the fake's devices that driver's library.
func withMlx5(t *testing.T) {
	real := loadMlx5
	t.Cleanup(func() { loadMlx5 = real })
	loadMlx5 = func(l *libibverbs.Library) (*libibverbs.Mlx5, error) { return libibverbs.NewMlx5(l, fakeLibrary()) }
}

// TestDCIsDetected: what is made, with which attributes, through which states,
// with which masks; nothing is left; the address says that the port has it.
func TestDCIsDetected(t *testing.T) {
	withMlx5(t)
	f := newFake(t)
	tr := f.open(Config{DC: true, NumDCIs: 2, RNRTimer: 5, TimeoutExponent: 10, RetryCount: 3, RNRRetryCount: 2, TrafficClass: 104})
	require.Equal(t, "DC: used with ports that have it", tr.DC().String())
	require.Len(t, f.dcQPs, 4, "those that were tried, and the initiators")
	assert.Equal(t, f.dcQPs[1].attr, f.dcQPs[3].attr)
	target, initiator := f.dcQPs[0], f.dcQPs[1]
	assert.EqualValues(t, 255, target.attr.QPType)
	assert.EqualValues(t, 1, target.attr.CompMask, "PD")
	assert.NotZero(t, target.attr.SRQ)
	assert.NotZero(t, target.attr.SendCQ, "it needs a valid one, though it sends nothing")
	assert.Equal(t, libibverbs.Mlx5QPInitAttr{CompMask: 2, DCType: 1, DCTAccessKey: target.own.DCTAccessKey}, target.own)
	assert.EqualValues(t, 1|64, initiator.attr.CompMask, "PD and send operations")
	assert.EqualValues(t, 1|2|4|16, initiator.attr.SendOpsFlags)
	assert.Zero(t, initiator.attr.SRQ)
	assert.Equal(t, libibverbs.Mlx5QPInitAttr{CompMask: 2, DCType: 2}, initiator.own)

	// Masks by hand: STATE 1, ACCESS_FLAGS 8, PKEY_INDEX 16, PORT 32, AV 128,
	// PATH_MTU 256, TIMEOUT 512, RETRY_CNT 1024, RNR_RETRY 2048, MAX_QP_RD_ATOMIC
	// 8192, MIN_RNR_TIMER 32768, SQ_PSN 65536.
	steps := f.states[target.qp]
	require.Len(t, steps, 2, "a target never goes to RTS")
	assert.Equal(t, []uint32{1 | 16 | 32 | 8, 1 | 128 | 256 | 32768}, []uint32{steps[0].mask, steps[1].mask})
	assert.Equal(t, []uint32{1, 2}, []uint32{steps[0].attr.QPState, steps[1].attr.QPState})
	assert.EqualValues(t, 5, steps[1].attr.MinRNRTimer)
	assert.Equal(t, libibverbs.AHAttr{IsGlobal: 1, SGIDIndex: 3, HopLimit: 64, TrafficClass: 104, PortNum: 1}, steps[1].attr.AH)
	steps = f.states[initiator.qp]
	require.Len(t, steps, 3)
	assert.Equal(t, []uint32{1 | 16 | 32, 1 | 256, 1 | 512 | 1024 | 2048 | 65536 | 8192}, []uint32{steps[0].mask, steps[1].mask, steps[2].mask})
	assert.Equal(t, []uint32{1, 2, 3}, []uint32{steps[0].attr.QPState, steps[1].attr.QPState, steps[2].attr.QPState})
	assert.Equal(t, []uint8{10, 3, 2, 9}, []uint8{steps[2].attr.Timeout, steps[2].attr.RetryCnt, steps[2].attr.RNRRetry, steps[2].attr.MaxRdAtomic})

	// After a failure: the same from RESET on.
	reset := tr.resetSteps()
	require.Len(t, reset, 4)
	assert.Equal(t, dcStep{mask: 1}, reset[0])
	assert.Equal(t, tr.initiatorSteps(), reset[1:])

	e := newEndpoint(t, tr, 1).(*endpoint)
	assert.True(t, e.local.hasDC)
	assert.Equal(t, 2, slices.Index(e.Local()[4:], 2), "bit 1 of byte 6: %v", e.Local())
}

// TestDCFallsBack: whatever is missing, the transport opens, says why there is
// no DC, tells no peer of any, and leaves nothing.
func TestDCFallsBack(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(f *fakeLib)
		why   string
	}{
		"another driver": {func(f *fakeLib) { f.notMlx5 = true }, "the device is of another driver"},
		"no SRQ":         {func(f *fakeLib) { f.failures["create_srq"] = []syscall.Errno{syscall.ENOMEM} }, "no shared receive queue: ibv_create_srq: cannot allocate memory"},
		"no target":      {func(f *fakeLib) { f.failures["mlx5dv_create_qp"] = []syscall.Errno{syscall.EOPNOTSUPP} }, "no target: the device or its firmware cannot"},
		"target, INIT":   {func(f *fakeLib) { f.failures["modify_qp"] = []syscall.Errno{syscall.EINVAL} }, "no target: to state 1: ibv_modify_qp: invalid argument"},
		"target, RTR":    {func(f *fakeLib) { f.failures["modify_qp"] = []syscall.Errno{0, syscall.EOPNOTSUPP} }, "no target: the device or its firmware cannot"},
		"no initiator":   {func(f *fakeLib) { f.failures["mlx5dv_create_qp"] = []syscall.Errno{0, syscall.EINVAL} }, "no initiator: mlx5dv_create_qp: invalid argument"},
		"initiator, RTS": {func(f *fakeLib) { f.failures["modify_qp"] = []syscall.Errno{0, 0, 0, 0, syscall.EINVAL} }, "no initiator: to state 3: ibv_modify_qp: invalid argument"},
	} {
		t.Run(name, func(t *testing.T) {
			withMlx5(t)
			f := newFake(t)
			c.spoil(f)
			tr := f.open(Config{DC: true})
			require.Equal(t, DC{Why: c.why}, tr.DC())
			require.False(t, newEndpoint(t, tr, 1).(*endpoint).local.hasDC)
			require.NotContains(t, f.alive, "srq")
		})
	}
	t.Run("no library", func(t *testing.T) {
		f := newFake(t)
		loadMlx5 = func(*libibverbs.Library) (*libibverbs.Mlx5, error) { return nil, dl.ErrNoLibrary }
		defer func() { loadMlx5 = libibverbs.LoadMlx5 }()
		require.Equal(t, DC{Why: "library not found"}, f.open(Config{DC: true}).DC())
	})
	t.Run("not asked for", func(t *testing.T) {
		withMlx5(t)
		f := newFake(t)
		require.Equal(t, DC{Why: "not asked for"}, f.open(Config{}).DC())
		require.Empty(t, f.dcQPs)
	})
	_, err := libibverbs.NewMlx5(&libibverbs.Library{}, fakeLibrary())
	require.True(t, errors.Is(err, dl.ErrNoSymbol))
}

// TestDCOfAPair is the decision table.
func TestDCOfAPair(t *testing.T) {
	for _, c := range []struct {
		local, peer, use bool
		why              string
	}{
		{true, true, true, "both ports have DC"},
		{true, false, false, "the peer's port has no DC"},
		{false, true, false, "this port has no DC"},
		{false, false, false, "neither port has DC"},
	} {
		use, why := useDC(c.local, c.peer)
		assert.Equal(t, c.use, use)
		assert.Equal(t, c.why, why)
	}
}
