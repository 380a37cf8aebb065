package cuda

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
)

// TestKernelStructs has a C++ compiler say where everything is.
func TestKernelStructs(t *testing.T) {
	want := map[string]int64{"MW_LOOK_EVERY": lookEvery}
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
