package telemetry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFormatVersion: programs of another version, such as moewire top, read these places by
// formatVersion. If one changes, raise it, and _FORMAT_VERSION of python/moewire/_observe/area.py.
func TestFormatVersion(t *testing.T) {
	places := []int{
		kindsAt, kindWords, waitForAt, rowsToAt, rowsFromAt, NumBuckets, numLinkWords, numTotals,
		expertsOff, ringOff, linksOff, RecordBytes, LinkBytes, AreaBytes,
	}
	require.Equal(t, 3, formatVersion, "and the changelog says which one it is")
	require.Equal(t, []int{32, 208, 112, 448, 496, 48, 12, 16, 8192, 73728, 204800, 128, 128, 210944}, places)
}
