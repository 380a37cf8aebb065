package testenv

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// inMutants is in the environment of a test that runs in a build with mutants.
const inMutants = "MOEWIRE_IN_MUTANTS"

// resultLine is a line of `go test -v` on a subtest.
var resultLine = regexp.MustCompile(`(?m)^    --- (\w+): \w+/(.*) \([0-9.]+s\)$`)

// Mutants is for a test of many mutants that are quick to find. The edits put all of
// them into the package, each behind a question that a function of the package's
// _test.go files answers. One build has them all: there the calling test runs again,
// Mutants returns true, and the test chooses one mutant after the other, each in a
// subtest. Elsewhere each of these subtests is reported as one of the calling test,
// and Mutants returns false.
func Mutants(t *testing.T, edits ...Edit) bool {
	t.Helper()
	switch {
	case os.Getenv(inMutants) != "":
		return true
	case os.Getenv(mutated) != "":
		t.Skip("this is a mutant")
	}
	if sources, _ := filepath.Glob("*.go"); len(sources) == 0 {
		Lacking(t, "sources", "this binary runs elsewhere than in its package's folder")
	}
	files, wrong := edited(edits)
	if wrong != "" {
		t.Fatal(wrong)
	}
	out, err := testEdited(t, files, []string{"-v", "-run", "^" + t.Name() + "$"}, []string{inMutants + "=1"})
	all := resultLine.FindAllSubmatch(out, -1)
	if len(all) == 0 {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("%v\n%s", err, out)
	for _, v := range all {
		t.Run(string(v[2]), func(t *testing.T) {
			if string(v[1]) != "PASS" {
				t.Fatalf("%s in the build with mutants", v[1])
			}
		})
	}
	if err != nil {
		t.Fail()
	}
	return false
}
