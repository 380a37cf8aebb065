package cuda

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/group/rankset"
)

var mirrors = map[string]any{
	"mw_inbox": inbox{}, "mw_arena": arena{}, "mw_slab": slab{}, "mw_slot": slot{}, "mw_state": state{},
	"mw_inflight": inFlight{}, "mw_wait_times": waitTimes{}, "mw_remote_rest": remoteRest{}, "mw_record": Record{}, "mw_counters": counters{},
	"mw_host_control": hostControl{}, "mw_report": report{}, "mw_common": common{},
	"mw_plan_args": planArgs{}, "mw_place_args": placeArgs{}, "mw_receive_args": receiveArgs{},
	"mw_publish_args": publishArgs{}, "mw_wait_args": waitArgs{}, "mw_reduce_args": reduceArgs{},
	"mw_remote_head": remoteHead{}, "mw_fifo": queue{}, "mw_remote": remoteRank{}, "mw_remote_common": remoteCommon{},
	"mw_remote_send_args": remoteSendArgs{}, "mw_remote_take_args": remoteTakeArgs{}, "mw_remote_order_args": remoteOrderArgs{},
}

var values = map[string]int64{
	"MW_MAX_RANKS": rankset.MaxRanks, "MW_MAX_SLOTS": MaxSlots, "MW_MAX_TOPK": MaxTopK, "MW_OPEN_RING": openRing,
	"MW_ERROR_EXPERT": errorExpert, "MW_ERROR_MISMATCH": errorMismatch, "MW_ERROR_CAPACITY": errorCapacity,
	"MW_ERROR_FENCED": errorFenced, "MW_ERROR_NO_HOST": errorNoHost, "MW_ERROR_RELEASED": errorReleased,
	"MW_ERROR_STALE": errorStale, "MW_ERROR_PROXY": errorProxy, "MW_ERROR_MESSAGE": errorMessage, "MW_ERROR_NEAR": errorNear, "MW_ERROR_ROUTING": errorRouting, "MW_ERROR_WEIGHTS": errorWeights, "MW_ERROR_WILD": errorWild,
	"MW_WILD_COUNTER": wildCounter, "MW_WILD_LAYOUT": wildLayout, "MW_WILD_OPEN": wildOpen, "MW_WILD_HEAD": wildHead, "MW_WILD_COUNTS": wildCounts,
	"MW_RECORD_RING": RecordRing, "MW_RECORD_WORDS": recordWords,
	"MW_RECORD_DISPATCH": recordDispatch, "MW_RECORD_COMBINE": recordCombine, "MW_RECORD_READERS": countersReaders,
	"sizeof(mw_remote_head)": remoteHeadBytes, "sizeof(mw_remote_place)": remotePlaceBytes, "MW_REMOTE_SLACK": remoteSlackBytes,
	"MW_FLAG_FP8": flagFP8, "MW_FLAG_FP32_OUTPUTS": flagFP32Outputs, "MW_FLAG_SCALES_SHIFT": flagScalesShift, "MW_FLAG_FLAT": flagFlat,
	"MW_FLAG_NO_ROUTING": flagNoRouting, "MW_FLAG_ORDERED": flagOrdered, "MW_FLAG_PRE_REDUCE": flagPreReduce, "MW_FLAG_HAS_MORE": flagHasMore,
	"MW_FLAG_FILL": flagFill, "MW_FLAG_REMOTE": flagRemote,
	"MW_FLAG_SPLIT": flagSplit, "MW_FLAG_REST": flagRest, "MW_LOOK_EVERY": lookEvery,
}

// TestWordsAreThoseOfTheKernels has a C++ compiler say where everything is.
func TestWordsAreThoseOfTheKernels(t *testing.T) {
	want := map[string]int64{}
	for name, v := range values {
		want[name] = v
	}
	for c, mirror := range mirrors {
		typ := reflect.TypeOf(mirror)
		want["sizeof("+c+")"] = int64(typ.Size())
		for f := range typ.Fields() {
			if tag := f.Tag.Get("c"); tag != "" {
				want[fmt.Sprintf("offsetof(%s, %s)", c, tag)] = int64(f.Offset)
				want[fmt.Sprintf("sizeof(((%s *)0)->%s)", c, tag)] = int64(f.Type.Size())
			}
		}
	}
	cudatest.CheckHeader(t, "remote_message.cuh", want) // which has control_words.cuh in it
}
