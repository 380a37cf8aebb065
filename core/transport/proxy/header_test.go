package proxy

import (
	"testing"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
)

// TestWordsAreThoseOfTheKernels has a C++ compiler say where everything is.
func TestWordsAreThoseOfTheKernels(t *testing.T) {
	cudatest.CheckHeader(t, "far.cuh", map[string]int64{
		"offsetof(mw_mail, lent)": 8 * mailLent, "offsetof(mw_mail, lent_at)": 8 * mailLentAt,
		"offsetof(mw_mail, lent_bytes)": 8 * mailLentBytes, "offsetof(mw_mail, came)": 8 * mailCame,
		"offsetof(mw_mail, came_at)": 8 * mailCameAt, "offsetof(mw_mail, came_bytes)": 8 * mailCameBytes,
		"offsetof(mw_mail, full)": 8 * mailFull,
		"sizeof(mw_mail)":         8 * mailWords, "MW_FAR_SEND": kindSend, "MW_FAR_RELEASE": kindRelease,
		"MW_FIFO_SHIFT": generationShift,
	})
}
