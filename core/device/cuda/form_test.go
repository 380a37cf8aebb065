package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
)

// TestDisagreementsAreNamed: in words of core/ep, not by bits of flags.
func TestDisagreementsAreNamed(t *testing.T) {
	pow2, ue8m0 := uint8(device.ScalesPow2), uint8(device.ScalesUE8M0)
	for want, forms := range map[string][2]Form{
		"dtype: bf16 here, fp8 on rank 1":                                                       {{}, {FP8: true}},
		"output dtype: float32 here, bf16 on rank 1":                                            {{FP32Outputs: true}, {}},
		"form: flat here, by expert on rank 1":                                                  {{Flat: true}, {Ordered: true}},
		"sending of topk_idx and topk_weights: false here, true on rank 1":                      {{Flat: true, NoRouting: true}, {Flat: true}},
		"the format of fp8 scales: round_scale here, round_scale with ue8m0 on rank 1":          {{FP8: true, Scales: pow2}, {FP8: true, Scales: ue8m0}},
		"the format of fp8 scales: float32 here, " + device.ScalesUE8M0.String() + " on rank 1": {{FP8: true}, {FP8: true, Scales: ue8m0}},
	} {
		mine, theirs := forms[0].Flags()&(flagOrdered-1), forms[1].Flags()&(flagOrdered-1)
		f := Failure{Kind: FailedMismatch, Detail: [4]uint64{1, paramForm, uint64(mine), uint64(theirs)}}
		require.Equal(t, want, f.Error())
	}
	hidden := Failure{Kind: FailedMismatch, Detail: [4]uint64{2, 2, 128, 64}}
	require.Equal(t, "hidden: 128 here, 64 on rank 2", hidden.Error())
	left := Failure{Kind: FailedRouting, Detail: [4]uint64{7, ^uint64(0), 2, 3}}
	require.Contains(t, left.Error(), "topk_idx[2, 1] of a combine is -1, the dispatch had 2 (with pre_reduce")
}
