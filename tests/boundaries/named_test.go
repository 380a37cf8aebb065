package boundaries

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// named is what a document says between backquotes if it is a path of the tree.
var named = regexp.MustCompile("`(\\.?\\w[\\w.-]*(?:/[\\w.-]+)+)`")

// TestContributingNamesWhatIsThere: the paths in CONTRIBUTING.md lead to files.
func TestContributingNamesWhatIsThere(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "CONTRIBUTING.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := named.FindAllStringSubmatch(string(text), -1)
	if len(found) < 20 {
		t.Fatalf("found only %d paths: the check looks for the wrong thing", len(found))
	}
	for _, f := range found {
		if strings.HasPrefix(f[1], "build/") || f[1] == "wheels/dist" {
			continue // made by the tests and by a build
		}
		if _, err := os.Stat(filepath.Join(root(t), f[1])); err != nil {
			t.Errorf("CONTRIBUTING.md names %s: %v", f[1], err)
		}
	}
}

// helpers are packages for tests alone, which the document of the layers need not name.
var helpers = []string{"cudatest", "fifotest", "servertest"}

// TestArchitectureNamesThePackages: docs/architecture.md has a word for each package of the core.
func TestArchitectureNamesThePackages(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	layers, _, _ := strings.Cut(string(text), "In `python/moewire`")
	known := map[string]bool{}
	for _, word := range regexp.MustCompile(`\w+`).FindAllString(layers, -1) {
		known[word] = true
	}
	for _, word := range helpers {
		known[word] = true
	}
	files, err := goFiles(os.DirFS(root(t)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := filepath.Base(f.pkg); strings.HasPrefix(f.pkg, "core/") && !f.test && !known[name] {
			t.Errorf("docs/architecture.md does not name %s", f.pkg)
			known[name] = true
		}
	}
}

// TestDocumentsSayTheNumberOfRanks: where a document, or a comment of the ABI, has the number in words.
func TestDocumentsSayTheNumberOfRanks(t *testing.T) {
	const most, epoch = rankset.MaxRanks, 64 - membership.EpochShift
	for name, says := range map[string]string{
		"README.md":              fmt.Sprintf("| up to %d; any hidden size", most),
		"CHANGELOG.md":           fmt.Sprintf("At most %d ranks in a group", most),
		"docs/glossary.md":       fmt.Sprintf("the ranks that dispatch together, at most %d |", most),
		"docs/gpu.md":            fmt.Sprintf("\n%d ranks; 1 to", most),
		"docs/hosts.md":          fmt.Sprintf("at most %d ranks", most),
		"docs/performance.md":    fmt.Sprintf("More than %d ranks do not run yet", most),
		"docs/protocol.md":       fmt.Sprintf("epoch (%d bits), one bit per member (%d bits)", epoch, membership.EpochShift),
		"docs/rationale.md":      fmt.Sprintf("limits a group to %d ranks", most),
		"docs/transport.md":      fmt.Sprintf("per remote rank, at most %d,", most-1),
		"docs/using.md":          fmt.Sprintf("up to %d ranks", most),
		"docs/wire.md":           fmt.Sprintf("one line per rank, %d", most),
		"capi/include/moewire.h": fmt.Sprintf("member set (%d bits) and epoch (%d bits)", membership.EpochShift, epoch),
	} {
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), says) {
			t.Errorf("%s does not say %q", name, says)
		}
	}
}
