package cpu

import (
	"strings"
	"testing"

	"github.com/moewire/moewire/core/limits"
)

func TestOpenRefuses(t *testing.T) {
	for want, o := range map[string]Options{
		"stores is 3,":                                {Stores: 3},
		"stores is -1,":                               {Stores: -1},
		"prefetch is -2, allowed -1 to 64":            {Prefetch: -2},
		"prefetch is 65, allowed -1 to 64":            {Prefetch: int(limits.Prefetch.Most) + 1},
		"num_threads is -1,":                          {Threads: -1},
		"num_threads is 65,":                          {Threads: int(limits.NumThreads.Most) + 1},
		"vector_width is 48,":                         {Width: 48},
		"stores is 2 (streaming), which the plain Go": {Width: Reference, Stores: StoresStreaming},
		"prefetch is 1 rows, which the plain Go":      {Width: Reference, Prefetch: 1},
		"num_threads is 2, which the plain Go":        {Width: Reference, Threads: 2},
	} {
		k, err := Open(o)
		if err == nil {
			k.Close()
			t.Errorf("%+v was not refused", o)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want something with %q", o, err, want)
		}
	}
}
