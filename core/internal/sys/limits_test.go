//go:build linux

package sys

import (
	"os"
	"path/filepath"
	"testing"
)

// TestMayRead: what is there and may be read; root may read everything.
func TestMayRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if MayRead(file) {
		t.Error("there is none")
	}
	if err := os.WriteFile(file, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if !MayRead(file) {
		t.Error("it is this user's own")
	}
	if err := os.Chmod(file, 0o200); err != nil {
		t.Fatal(err)
	}
	if MayRead(file) != (Geteuid() == 0) {
		t.Errorf("it is for writing alone, and this is user %d", Geteuid())
	}
}
