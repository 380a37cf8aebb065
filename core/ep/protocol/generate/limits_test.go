package main

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/limits"
)

// TestTableOfLimits: the generator finds each row, and limits.All lacks none.
func TestTableOfLimits(t *testing.T) {
	table, err := tableOfLimits(root)
	require.NoError(t, err)
	var want []limit
	for _, r := range limits.All {
		want = append(want, limit{r.Name, strconv.FormatInt(r.Least, 10), strconv.FormatInt(r.Most, 10)})
	}
	require.Equal(t, want, table)
}
