package testenv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Edit is the name of a file, as seen from the folder of the package under test, a text
// that is in it exactly once, and what the text becomes.
type Edit [3]string

// edited are the files with the edits, or else what is wrong with one of these.
func edited(edits []Edit) (files map[string][]byte, wrong string) {
	files = map[string][]byte{}
	for _, e := range edits {
		text, err := files[e[0]], error(nil)
		if text == nil {
			text, err = os.ReadFile(e[0])
		}
		if err != nil {
			return nil, err.Error()
		}
		if files[e[0]], wrong = e.apply(text); wrong != "" {
			return nil, wrong
		}
	}
	return files, ""
}

func (e *Edit) apply(text []byte) (after []byte, wrong string) {
	file, from, to := e[0], e[1], e[2]
	switch n := bytes.Count(text, []byte(from)); {
	case n == 0:
		return nil, "the edit does not apply any more: " + file + " has no " + from
	case n > 1:
		return nil, "the edit is not one: " + file + " has more than one " + from
	case from == to:
		return nil, "the edit changes nothing"
	}
	return bytes.Replace(text, []byte(from), []byte(to), 1), ""
}

// testEdited runs `go test` on the package with other texts of some of its files.
func testEdited(t testing.TB, files map[string][]byte, args, env []string) ([]byte, error) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		Lacking(t, "go", err.Error())
	}
	args = append([]string{"test", "-overlay", overlay(t, files), "-count=1", "-vet=off"}, args...)
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Env = append(os.Environ(), env...)
	return cmd.CombinedOutput()
}

// overlay makes the file that tells the go command to read files from elsewhere.
func overlay(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	for name, text := range files {
		path, err := filepath.Abs(name)
		replace[path] = filepath.Join(dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(name)))
		if err == nil {
			err = os.WriteFile(replace[path], text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	list := filepath.Join(dir, "overlay.json")
	text, _ := json.Marshal(map[string]any{"Replace": replace})
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return list
}
