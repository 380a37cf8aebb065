package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strconv"
	"strings"
)

// limit is a row of core/limits.
type limit struct{ name, least, most string }

// tableOfLimits reads the ranges of core/limits: its variables of type Range.
func tableOfLimits(root string) (table []limit, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, filepath.Join(root, "core/limits/limits.go"), nil, 0)
	if err != nil {
		return nil, err
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	check := types.Config{Importer: importer.ForCompiler(fset, "source", nil), IgnoreFuncBodies: true}
	if _, err := check.Check("limits", fset, []*ast.File{file}, info); err != nil {
		return nil, err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		row, ok := n.(*ast.CompositeLit)
		if !ok || !isRange(row) || err != nil {
			return true
		}
		var one limit
		one, err = rowOf(info, row)
		table = append(table, one)
		return true
	})
	return table, err
}

func isRange(row *ast.CompositeLit) bool {
	name, ok := row.Type.(*ast.Ident)
	return ok && name.Name == "Range"
}

// rowOf reads a row whose values are constants.
func rowOf(info *types.Info, row *ast.CompositeLit) (l limit, err error) {
	var values [3]string
	if len(row.Elts) != len(values) {
		return l, fmt.Errorf("core/limits: a row has %d values, wanted %d", len(row.Elts), len(values))
	}
	for i, e := range row.Elts {
		value := info.Types[e].Value
		if value == nil {
			return l, fmt.Errorf("core/limits: value %d of row %s is no constant", i, values[0])
		}
		values[i] = value.ExactString()
	}
	name, err := strconv.Unquote(values[0])
	return limit{name, values[1], values[2]}, err
}

// writeLimits writes the table of core/limits as a dictionary.
func writeLimits(out *strings.Builder, root string) error {
	table, err := tableOfLimits(root)
	if err != nil {
		return err
	}
	out.WriteString("\n# What numbers that callers give may be, from core/limits: name -> (least, most).\n")
	out.WriteString("LIMITS: dict[str, tuple[int, int]] = {\n")
	for _, l := range table {
		fmt.Fprintf(out, "    %q: (%s, %s),\n", l.name, l.least, l.most)
	}
	out.WriteString("}\n")
	return nil
}
