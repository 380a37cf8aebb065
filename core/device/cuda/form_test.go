package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
)

// TestDisagreementsAreNamed: in words of core/ep/cpu, not by bits of flags.
func TestDisagreementsAreNamed(t *testing.T) {
	for want, forms := range map[string][2]Form{
		"dtype: bf16 here, fp8 on rank 1":                                                      {{}, {RowType: protocol.FP8}},
		"output dtype: float32 here, bf16 on rank 1":                                           {{OutputType: protocol.FP32}, {}},
		"the call: scatter here, gather on rank 1":                                             {{Flat: true, Use: protocol.ForScatter}, {Flat: true, Use: protocol.ForGather}},
		"form: flat here, by expert on rank 1":                                                 {{Flat: true}, {Ordered: true}},
		"sending of topk_idx and topk_weights: false here, true on rank 1":                     {{Flat: true, NoRouting: true}, {Flat: true}},
		"the format of fp8 scales: round_scale here, round_scale with ue8m0 on rank 1":         {{RowType: protocol.FP8Pow2}, {RowType: protocol.FP8UE8M0}},
		"the format of fp8 scales: float32 here, " + protocol.FP8UE8M0.Scales() + " on rank 1": {{RowType: protocol.FP8}, {RowType: protocol.FP8UE8M0}},
	} {
		mine, theirs := forms[0].Flags()&protocol.FlagsAgreed, forms[1].Flags()&protocol.FlagsAgreed
		f := Failure{Kind: FailedMismatch, Detail: [4]uint64{1, protocol.ParamFlags, uint64(mine), uint64(theirs)}}
		require.Equal(t, want, f.Error())
	}
	for want, flags := range map[string][2]uint64{ // a word that no rank has stored
		"dtype: bf16 here, unknown on rank 1":    {0, protocol.FlagPow2},
		"dtype: fp8 here, unknown on rank 1":     {protocol.FlagFP8, protocol.FlagFP8 | protocol.FlagPow2 | protocol.FlagUE8M0},
		"form: 32 here, 1099511627808 on rank 1": {protocol.FlagFlat, protocol.FlagFlat | 1<<40},
	} {
		f := Failure{Kind: FailedMismatch, Detail: [4]uint64{1, protocol.ParamFlags, flags[0], flags[1]}}
		require.Equal(t, want, f.Error())
	}
	hidden := Failure{Kind: FailedMismatch, Detail: [4]uint64{2, 2, 128, 64}}
	require.Equal(t, "hidden: 128 here, 64 on rank 2", hidden.Error())
	left := Failure{Kind: FailedRouting, Detail: [4]uint64{7, ^uint64(0), 2, 3}}
	require.Contains(t, left.Error(), "topk_idx[2, 1] of a combine is -1, the dispatch had 2 (with pre_reduce")
}
