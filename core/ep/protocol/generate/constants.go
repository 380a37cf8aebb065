package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"unicode"
)

// block is a block of constants that kernels know, too.
type block struct {
	comment string // of the whole block, lines without slashes
	consts  []constOf
}

type constOf struct {
	name, value string
	above       string // the comment on lines of its own
	beside      string
}

const directive = "//mw:kernels"

// blocks are the constants of core/ep/protocol that are for kernels.
func (p *protocolFiles) blocks() (all []block) {
	for _, f := range p.syntax {
		for _, decl := range f.Decls {
			if d, ok := decl.(*ast.GenDecl); ok && isForKernels(d) {
				all = append(all, p.block(d))
			}
		}
	}
	return all
}

type protocolFiles struct {
	syntax []*ast.File
	info   *types.Info
}

func parseProtocol(root string) (protocolFiles, error) {
	names, err := filepath.Glob(filepath.Join(root, "core/ep/protocol/*.go"))
	if err != nil {
		return protocolFiles{}, err
	}
	fset := token.NewFileSet()
	out := protocolFiles{info: &types.Info{Defs: map[*ast.Ident]types.Object{}}}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return out, err
		}
		out.syntax = append(out.syntax, f)
	}
	check := types.Config{Importer: importer.ForCompiler(fset, "source", nil), IgnoreFuncBodies: true}
	_, err = check.Check("protocol", fset, out.syntax, out.info)
	return out, err
}

func isForKernels(d *ast.GenDecl) bool {
	if d.Tok != token.CONST || d.Doc == nil {
		return false
	}
	for _, c := range d.Doc.List {
		if c.Text == directive {
			return true
		}
	}
	return false
}

func (p *protocolFiles) block(d *ast.GenDecl) block {
	b := block{comment: text(d.Doc)}
	for _, spec := range d.Specs {
		s := spec.(*ast.ValueSpec) // the grammar has no other
		for i, name := range s.Names {
			b.consts = append(b.consts, constOf{name.Name, p.value(name, s.Values, i), text(s.Doc), text(s.Comment)})
		}
	}
	return b
}

// value is that of the i-th name of a line: as it is written if that is hexadecimal, so that
// flags stay so. A line of a block with iota may have no values.
func (p *protocolFiles) value(name *ast.Ident, written []ast.Expr, i int) string {
	if i < len(written) {
		if lit, ok := written[i].(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, "0x") {
			return lit.Value
		}
	}
	return p.info.Defs[name].(*types.Const).Val().ExactString()
}

func text(c *ast.CommentGroup) string { return strings.TrimSpace(c.Text()) }

// kernelConstants is the header with the constants of core/ep/protocol.
func kernelConstants(from tree) ([]byte, error) {
	blocks := from.protocol.blocks()
	var out strings.Builder
	fmt.Fprintf(&out, "// %s\n// The constants of core/ep/protocol.\n#pragma once\n", notice)
	rename := renamer(blocks)
	for _, b := range blocks {
		fmt.Fprintf(&out, "\n%senum {\n", comment("", b.comment))
		for _, c := range b.consts {
			fmt.Fprintf(&out, "%s  %s = %s,%s\n", comment("  ", c.above), cName(c.name), c.value, beside(c.beside))
		}
		out.WriteString("};\n")
	}
	return []byte(rename.Replace(out.String())), nil
}

// renamer gives constants their names in C where comments mention them.
func renamer(blocks []block) *strings.Replacer {
	var pairs []string
	for _, b := range blocks {
		for _, c := range b.consts {
			pairs = append(pairs, "// "+c.name+" ", "// "+cName(c.name)+" ")
		}
	}
	return strings.NewReplacer(pairs...)
}

func comment(indent, text string) (out string) {
	for line := range strings.Lines(text) {
		out += indent + "// " + strings.TrimSpace(line) + "\n"
	}
	return out
}

func beside(text string) string {
	if text == "" {
		return ""
	}
	return " // " + text
}

// cName is MaxTopK as MW_MAX_TOPK. A new part of a name begins at a capital after a small
// letter, and at one before a small letter.
func cName(name string) string {
	name = strings.ReplaceAll(name, "TopK", "Topk")
	out := "MW_"
	letters := []rune(name)
	for i, c := range letters {
		if i > 0 && unicode.IsUpper(c) && (unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			out += "_"
		}
		out += string(unicode.ToUpper(c))
	}
	return out
}

// named is the value of a constant of core/ep/protocol.
func (p *protocolFiles) named(name string) (string, error) {
	for id, object := range p.info.Defs {
		if c, ok := object.(*types.Const); ok && id.Name == name {
			return c.Val().String(), nil
		}
	}
	return "", fmt.Errorf("core/ep/protocol has no constant %s", name)
}
