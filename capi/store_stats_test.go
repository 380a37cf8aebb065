package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/metrics"
)

// Every count of a client has a text, and docs/observability.md has the table of all.
func TestClientCountsAreDocumented(t *testing.T) {
	var table strings.Builder
	for _, r := range metrics.Rows(&storeReport{}) {
		require.NotEmpty(t, r.Help, r.Key)
		fmt.Fprintf(&table, "| `%s` | %s |\n", r.Key, r.Help)
	}
	docs, err := os.ReadFile("../docs/observability.md")
	require.NoError(t, err)
	if !strings.Contains(string(docs), table.String()) {
		t.Fatalf("docs/observability.md has not this table:\n%s", table.String())
	}
}
