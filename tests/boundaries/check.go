package boundaries

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// goFile is what the rules look at in one file.
type goFile struct {
	name    string // relative to the root of the tree
	pkg     string // its folder
	test    bool
	content []byte
	imports []string
}

// Check returns what is wrong in the tree, one sentence each.
func Check(tree fs.FS) ([]string, error) {
	files, err := goFiles(tree)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for _, f := range files {
		wrong = append(wrong, checkLayer(f)...)
		wrong = append(wrong, checkRooms(f)...)
		wrong = append(wrong, checkForm(f)...)
		wrong = append(wrong, checkRankSets(f)...)
	}
	return wrong, nil
}

// goFiles parses the Go files of the tree, as the go command would find them.
func goFiles(tree fs.FS) ([]goFile, error) {
	var files []goFile
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			hidden := base != "." && strings.HasPrefix(base, ".")
			if hidden || strings.HasPrefix(base, "_") || base == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		f, err := parse(tree, name)
		if err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

func parse(tree fs.FS, name string) (goFile, error) {
	content, err := fs.ReadFile(tree, name)
	if err != nil {
		return goFile{}, err
	}
	f := goFile{
		name:    name,
		pkg:     path.Dir(name),
		test:    strings.HasSuffix(name, "_test.go"),
		content: content,
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, content, parser.ImportsOnly)
	if err != nil {
		return goFile{}, err
	}
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return goFile{}, fmt.Errorf("%s: %w", name, err)
		}
		f.imports = append(f.imports, imported)
	}
	return f, nil
}

// checkLayer holds a file's imports to the table of layers.
func checkLayer(f goFile) []string {
	allowed, known := allowedImports(f.pkg)
	if !known {
		return []string{fmt.Sprintf("%s: package %s has no row in the table of layers", f.name, f.pkg)}
	}
	if f.test {
		allowed = append([]string{"core/...", f.pkg}, allowed...)
	}
	var wrong []string
	for _, imported := range f.imports {
		ours, found := strings.CutPrefix(imported, Module+"/")
		if found && !matchesAny(allowed, ours) {
			wrong = append(wrong, fmt.Sprintf("%s: %s may not import %s", f.name, f.pkg, ours))
		}
	}
	return wrong
}

func allowedImports(pkg string) (allowed []string, known bool) {
	for _, l := range layers {
		if matches(l.pkg, pkg) {
			return l.imports, true
		}
	}
	return nil, false
}

// checkRooms looks for imports outside the rooms that may have them.
func checkRooms(f goFile) []string {
	var wrong []string
	for _, imported := range f.imports {
		for _, r := range rooms {
			outside := !matchesAny(r.within, f.pkg) || matchesAny(r.except, f.pkg)
			if matches(r.path, imported) && outside {
				wrong = append(wrong, fmt.Sprintf("%s: %s may not be imported in %s", f.name, imported, f.pkg))
			}
		}
	}
	return wrong
}

// checkForm looks at a file's formatting, its length and that of its functions.
func checkForm(f goFile) []string {
	var wrong []string
	if formatted, err := format.Source(f.content); err != nil {
		wrong = append(wrong, fmt.Sprintf("%s: %v", f.name, err))
	} else if !bytes.Equal(formatted, f.content) {
		wrong = append(wrong, fmt.Sprintf("%s: is not formatted; run gofmt", f.name))
	}
	if lines := bytes.Count(f.content, []byte("\n")); lines > MaxLines && !f.test {
		wrong = append(wrong, fmt.Sprintf("%s: has %d lines, at most %d are allowed", f.name, lines, MaxLines))
	}
	return append(wrong, checkFunctions(f)...)
}

// checkFunctions looks for long functions in a product file.
func checkFunctions(f goFile) []string {
	if f.test || strings.HasPrefix(f.pkg, "tests/") {
		return nil
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, f.name, f.content, parser.SkipObjectResolution)
	if err != nil {
		return nil // checkForm has said so
	}
	var wrong []string
	for _, d := range parsed.Decls {
		function, is := d.(*ast.FuncDecl)
		if !is {
			continue
		}
		lines := set.Position(function.End()).Line - set.Position(function.Pos()).Line + 1
		if lines > MaxFunctionLines {
			wrong = append(wrong, fmt.Sprintf("%s: function %s has %d lines, at most %d are allowed",
				f.name, function.Name.Name, lines, MaxFunctionLines))
		}
	}
	return wrong
}

// matches reports whether a path is the pattern, or below it if the pattern
// ends in "...".
func matches(pattern, p string) bool {
	if pattern == "..." {
		return true
	}
	if prefix, found := strings.CutSuffix(pattern, "/..."); found {
		return p == prefix || strings.HasPrefix(p, prefix+"/")
	}
	return p == pattern
}

func matchesAny(patterns []string, p string) bool {
	for _, pattern := range patterns {
		if matches(pattern, p) {
			return true
		}
	}
	return false
}

var (
	comment     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	declaration = regexp.MustCompile(`\b(mw_[a-z0-9_]+)\s*\(`)
)

// HeaderFunctions returns the names of the functions that a header declares.
func HeaderFunctions(header string) []string {
	var names []string
	for _, m := range declaration.FindAllStringSubmatch(comment.ReplaceAllString(header, " "), -1) {
		names = append(names, m[1])
	}
	return names
}
