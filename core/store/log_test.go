package store

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// logCalls are the functions whose texts become lines of the log; those of the functions in logTexts are lines, too.
var (
	logCalls = map[string]bool{"Log": true, "logRare": true}
	logTexts = map[string]bool{"lose": true, "spells": true, "report": true}
)

// logLines are the texts of all lines that a package logs.
func logLines(t *testing.T, dir string) (lines []string) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if isLogged(n) {
				lines = append(lines, literals(n)...)
			}
			return true
		})
	}
	return lines
}

func isLogged(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		called, is := n.Fun.(*ast.SelectorExpr)
		return is && logCalls[called.Sel.Name]
	case *ast.FuncDecl:
		return logTexts[n.Name.Name]
	case *ast.ValueSpec:
		return logTexts[n.Names[0].Name]
	}
	return false
}

// literals are the texts in a part of the source that have several words.
func literals(n ast.Node) (list []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if lit, is := n.(*ast.BasicLit); is && lit.Kind == token.STRING {
			if text, _ := strconv.Unquote(lit.Value); strings.Contains(text, " ") {
				list = append(list, text)
			}
		}
		return true
	})
	return list
}

// verbs are what stands for a value in a text of the code, and in the documents: N, T, ADDRESS.
var verbs = regexp.MustCompile(`%[a-z]|\b[A-Z]+\b`)

// TestLinesAreDocumented: docs/observability.md has each line that an engine or a server logs, in its words.
func TestLinesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/observability.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "### The log of a server")
	require.True(t, found)
	table = verbs.ReplaceAllString(table, "_")
	lines := append(logLines(t, "."), logLines(t, "server")...)
	require.Greater(t, len(lines), 25, "the sources were not read")
	for _, line := range lines {
		words, _, _ := strings.Cut(verbs.ReplaceAllString(line, "_"), ":")
		if words = strings.Trim(words, "; _"); !strings.Contains(table, words) {
			t.Errorf("docs/observability.md has not %q, of %q", words, line)
		}
	}
}
