package boundaries

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// families are the invariants that docs/transport.md lists, and how many each
// family has.
var families = []struct {
	name string
	num  int
}{{"ES", 16}, {"CO", 12}, {"SC", 9}, {"BS", 6}, {"WF", 10}, {"TP", 2}}

// alwaysBroken are defects that ordinary runs of the tests put in.
var alwaysBroken = []string{
	"core/endpoint.TestMutants/reclaim only on insert",
	"core/endpoint.TestMutants/cap by list length",
	"core/endpoint.TestMutants/no generation",
	"core/endpoint.TestMutants/check then allocate",
	"core/op.TestMutants/no generation",
	"core/pool.TestMutants/check then allocate",
	"core/pool.TestMutants/cap by list length",
	"core/wire.TestMutations/tags without the payload",
}

var (
	rowForm  = regexp.MustCompile(`(?m)^\| ([A-Z]{2}[0-9]+) \| [^|]+ \| ([^|]+) \|$`)
	testForm = regexp.MustCompile("`([a-z/]+)\\.((?:Test|Fuzz)\\w+)(?:/([^`]+))?`")
)

// TestInvariantsAreShown: docs/transport.md names, for each invariant, tests
// that exist; those that break the code among them.
func TestInvariantsAreShown(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "transport.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range checkInvariants(root(t), string(text)) {
		t.Error(wrong)
	}
}

// checkInvariants returns what is wrong with the table, one sentence each.
func checkInvariants(dir, text string) (wrong []string) {
	found := map[string]int{}
	for _, row := range rowForm.FindAllStringSubmatch(text, -1) {
		tests := testForm.FindAllStringSubmatch(row[2], -1)
		found[row[1]] += len(tests)
		for _, test := range tests {
			if why := missingTest(dir, test[1], test[2], test[3]); why != "" {
				wrong = append(wrong, row[1]+": "+why)
			}
		}
	}
	for _, f := range families {
		for i := 1; i <= f.num; i++ {
			if id := fmt.Sprint(f.name, i); found[id] == 0 {
				wrong = append(wrong, id+" is shown by no test")
			}
		}
	}
	for _, name := range alwaysBroken {
		if !strings.Contains(text, "`"+name+"`") {
			wrong = append(wrong, name+" is not listed")
		}
	}
	return wrong
}

// missingTest says that a package has no such test, or no such case of it.
func missingTest(dir, pkg, test, name string) string {
	files, _ := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pkg), "*_test.go"))
	all := ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		all += string(text)
	}
	switch {
	case !strings.Contains(all, "\nfunc "+test+"("):
		return fmt.Sprintf("%s has no %s", pkg, test)
	case name != "" && !strings.Contains(all, `"`+name+`"`):
		return fmt.Sprintf("%s has no case %q", pkg, name)
	}
	return ""
}

// TestInvariantsCheckFinds gives the check one mistake at a time.
func TestInvariantsCheckFinds(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "transport.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to, want string }{
		{"| ES16 |", "| ES17 |", "ES16 is shown by no test"},
		{"`core/pool.TestSC9`", "a benchmark", "SC9 is shown by no test"},
		{"`core/pool.TestSC9`", "`core/pool.TestSC99`", "SC9: core/pool has no TestSC99"},
		{"`core/op.TestMutants/no generation`", "`core/op.TestMutants/no gen`", `core/op has no case "no gen"`},
		{"`core/op.TestMutants/no generation`", "`core/op.TestInvariants`", "core/op.TestMutants/no generation is not listed"},
	} {
		broken := strings.Replace(string(text), c.from, c.to, 1)
		if got := strings.Join(checkInvariants(root(t), broken), "\n"); !strings.Contains(got, c.want) {
			t.Errorf("%s instead of %s: found %q, not %q", c.to, c.from, got, c.want)
		}
	}
}
