package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExample builds the program, runs it, and compares what it prints.
func TestExample(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "example")
	out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(bin).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, `rank 0: rank 1 is reached by tcp
rank 0: token 0: 0 came back as 0, want 0
rank 0: token 1: 1 came back as 1.5, want 1.5
rank 0: token 2: 2 came back as 3, want 3
rank 1: rank 0 is reached by tcp
rank 1: token 0: 10 came back as 15, want 15
rank 1: token 1: 11 came back as 16.5, want 16.5
rank 1: token 2: 12 came back as 18, want 18
`, string(out))
}
