package proxy

import (
	"testing"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
)

// TestWordsAreThoseOfTheKernels has a C++ compiler say where everything is.
func TestWordsAreThoseOfTheKernels(t *testing.T) {
	cudatest.CheckHeader(t, "remote.cuh", map[string]int64{
		"offsetof(mw_mail, lease)": 8 * mailLease, "offsetof(mw_mail, lease_at)": 8 * mailLeaseAt,
		"offsetof(mw_mail, lease_bytes)": 8 * mailLeaseBytes, "offsetof(mw_mail, came)": 8 * mailCame,
		"offsetof(mw_mail, came_at)": 8 * mailCameAt, "offsetof(mw_mail, came_bytes)": 8 * mailCameBytes,
		"offsetof(mw_mail, full)": 8 * mailFull,
		"sizeof(mw_mail)":         8 * mailWords,
	})
}
