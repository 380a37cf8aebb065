package boundaries

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// wordPlaces are the packages that pack sets of ranks into words: of shared memory, of messages
// to other hosts, of kernels and of the C ABI. More ranks than a word has bits need work there.
var wordPlaces = []string{
	"core/group/membership", "core/telemetry", "core/group/multihost", "core/device/cuda",
	"core/ep/suspicion", "core/ep/cpu", "core/ep/cuda", "capi",
}

// bitPlaces are the packages that look for the bits of a word themselves.
var bitPlaces = []string{"core/group/rankset", "core/transport/shmem"} // shmem: endpoints with news

// checkRankSets looks in a product file for what core/group/rankset alone does: a loop over the
// bits of a set, another number of ranks; and for words of sets outside wordPlaces.
func checkRankSets(f goFile) []string {
	product := strings.HasPrefix(f.pkg, "core/") || f.pkg == "capi"
	if f.test || !product {
		return nil
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), f.name, f.content, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		if what := rankSetMistake(f.pkg, n); what != "" {
			wrong = append(wrong, fmt.Sprintf("%s: %s", f.name, what))
		}
		return true
	})
	return wrong
}

// rankSetMistake says what is wrong with one piece of syntax; "" if nothing is.
func rankSetMistake(pkg string, n ast.Node) string {
	switch {
	case looksForBits(n) && !slices.Contains(bitPlaces, pkg):
		return "looks for bits by hand; range over rankset.Set.All"
	case packs(n) && pkg != rankSetPackage && !slices.Contains(wordPlaces, pkg):
		return fmt.Sprintf("%s is no place where sets of ranks are words", pkg)
	case numbersRanks(n) && pkg != rankSetPackage:
		return "declares a number of ranks; rankset.MaxRanks is the one"
	}
	return ""
}

const rankSetPackage = "core/group/rankset"

// looksForBits recognizes the loop over the bits of a word: its step, x &= x - 1, and the
// function that finds the lowest bit.
func looksForBits(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return clearsLowest(n)
	case *ast.SelectorExpr:
		return isName(n.X, "bits") && strings.HasPrefix(n.Sel.Name, "TrailingZeros")
	}
	return false
}

func clearsLowest(n *ast.AssignStmt) bool {
	if n.Tok != token.AND_ASSIGN {
		return false
	}
	to, isIdent := n.Lhs[0].(*ast.Ident)
	less, isBinary := n.Rhs[0].(*ast.BinaryExpr)
	return isIdent && isBinary && less.Op == token.SUB && isName(less.X, to.Name)
}

// packs recognizes rankset.FromWord, and calls of a method Word without arguments.
func packs(n ast.Node) bool {
	if c, is := n.(*ast.CallExpr); is && len(c.Args) == 0 {
		s, is := c.Fun.(*ast.SelectorExpr)
		return is && s.Sel.Name == "Word"
	}
	s, is := n.(*ast.SelectorExpr)
	return is && isName(s.X, "rankset") && s.Sel.Name == "FromWord"
}

// numbersRanks recognizes a constant with a name like MaxRanks and a number as its value.
func numbersRanks(n ast.Node) bool {
	spec, is := n.(*ast.ValueSpec)
	if !is {
		return false
	}
	for i, name := range spec.Names {
		called := strings.ToLower(name.Name)
		if i >= len(spec.Values) || called != "maxranks" && called != "numranks" && called != "mostranks" {
			continue
		}
		if _, is := spec.Values[i].(*ast.BasicLit); is {
			return true
		}
	}
	return false
}

func isName(e ast.Expr, name string) bool {
	ident, is := e.(*ast.Ident)
	return is && ident.Name == name
}

// checkWordPlaces looks for packages in wordPlaces that pack no set.
func checkWordPlaces(files []goFile, places []string) []string {
	var wrong []string
	for _, place := range places {
		if !slices.ContainsFunc(files, func(f goFile) bool {
			return f.pkg == place && !f.test && (strings.Contains(string(f.content), "rankset.FromWord(") ||
				strings.Contains(string(f.content), ".Word()"))
		}) {
			wrong = append(wrong, fmt.Sprintf("wordPlaces: no set of ranks is a word in %s", place))
		}
	}
	return wrong
}
