package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// abi is what the headers of the C ABI say.
type abi struct {
	constants, structs, functions [][]string // as matched below
}

var (
	blockComment = regexp.MustCompile(`(?s)/\*.*?\*/`)
	defined      = regexp.MustCompile(`(?m)^#define (MW_\w+) (\S+)`)
	typedef      = regexp.MustCompile(`(?s)typedef struct \{(.*?)\} (\w+);`)
	prototype    = regexp.MustCompile(`(?m)^((?:const )?\w+) (\*?)(mw_\w+)\(([^;{]*?)\);`)
)

func readABI(root string) (a abi, err error) {
	for _, header := range []string{"moewire.h", "moewire_fabric.h", "moewire_store.h", "moewire_routing.h"} {
		raw, err := os.ReadFile(filepath.Join(root, "capi/include", header))
		if err != nil {
			return a, err
		}
		text := blockComment.ReplaceAllString(string(raw), " ")
		a.constants = append(a.constants, defined.FindAllStringSubmatch(text, -1)...)
		a.structs = append(a.structs, typedef.FindAllStringSubmatch(text, -1)...)
		a.functions = append(a.functions, prototype.FindAllStringSubmatch(text, -1)...)
	}
	return a, nil
}

// pythonFacts are constants of core/ep/protocol that the headers say in words only.
var pythonFacts = []string{"QuantBlock", "ScalesPerWord", "RowMultiple", "EpochShift"}

const pythonHead = `# %s
"""The C ABI, as the headers in capi/include have it.

Constants, structs, and functions with their types. What they mean is said in the headers.
"""

# Names are those of the headers.
# ruff: noqa: N801

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int16,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar

`

// pythonABI is the module with the ABI's constants, structs and functions.
func pythonABI(from tree) ([]byte, error) {
	a, err := readABI(from.root)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	fmt.Fprintf(&out, pythonHead, notice)
	for _, c := range a.constants {
		fmt.Fprintf(&out, "%s = %s\n", c[1], pythonValue(c[2]))
	}
	out.WriteString("\nCONSTANTS: dict[str, int] = {\n    name: value for name, value in globals().items() if name.startswith(\"MW_\")\n}\n")
	if err := writeFacts(&out, &from.protocol); err != nil {
		return nil, err
	}
	if err := writeLimits(&out, from.root); err != nil {
		return nil, err
	}
	out.WriteString("\n_Fields = list[tuple[str, Any]]\n")
	for _, s := range a.structs {
		if err := writeClass(&out, s[2], s[1]); err != nil {
			return nil, fmt.Errorf("%s: %w", s[2], err)
		}
	}
	err = a.writeTables(&out)
	return []byte(out.String()), err
}

func pythonValue(written string) string {
	if written == "UINT64_MAX" {
		return "(1 << 64) - 1"
	}
	return strings.TrimSuffix(written, "u")
}

func writeFacts(out *strings.Builder, p *protocolFiles) error {
	out.WriteString("\n# Constants of core/ep/protocol that the headers say in words.\n")
	for _, name := range pythonFacts {
		value, err := p.named(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s = %s\n", strings.TrimPrefix(cName(name), "MW_"), value)
	}
	return nil
}

func writeClass(out *strings.Builder, name, body string) error {
	fields, err := fieldsOf(body)
	if err != nil {
		return err
	}
	var lines []string
	for _, f := range fields {
		lines = append(lines, fmt.Sprintf("(%q, %s)", f.name, fieldType(f)))
	}
	one := "[" + strings.Join(lines, ", ") + "]"
	if len(lines) > 2 {
		one = "[\n        " + strings.Join(lines, ",\n        ") + ",\n    ]"
	}
	fmt.Fprintf(out, "\n\nclass %s(Structure):\n    _fields_: ClassVar[_Fields] = %s\n", name, one)
	return nil
}

// fieldType is a field's type; an address in a struct is a number.
func fieldType(f field) string {
	typ := pythonType(f.typ)
	if f.pointer {
		typ = "c_uint64"
	}
	for i := len(f.length) - 1; i >= 0; i-- {
		typ += " * " + f.length[i]
	}
	return typ
}

var integer = regexp.MustCompile(`^u?int\d+_t$`)

func pythonType(c string) string {
	switch {
	case c == "mw_status_t":
		return "c_int32"
	case c == "char":
		return "c_char"
	case integer.MatchString(c):
		return "c_" + strings.TrimSuffix(c, "_t")
	}
	return c
}

func (a *abi) writeTables(out *strings.Builder) error {
	out.WriteString("\n\nSTRUCTS: dict[str, type[Structure]] = {\n    kind.__name__: kind\n    for kind in (\n")
	for _, s := range a.structs {
		fmt.Fprintf(out, "        %s,\n", s[2])
	}
	out.WriteString("    )\n}\n\n# Name -> (result type, argument types).\nSIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {\n")
	for _, f := range a.functions {
		args, err := argumentsOf(f[4])
		if err != nil {
			return fmt.Errorf("%s: %w", f[3], err)
		}
		out.WriteString(signature(f[3], result(f[1], f[2]), args))
	}
	out.WriteString("}\n")
	a.writeFunctions(out)
	out.WriteString("\n\nSIZE_OF: dict[type[Structure], int] = {kind: ctypes.sizeof(kind) for kind in STRUCTS.values()}\n")
	return nil
}

// writeFunctions writes the functions as attributes of a class: for checkers of types.
func (a *abi) writeFunctions(out *strings.Builder) {
	out.WriteString("\n\nclass Functions:\n    \"\"\"The functions of a loaded library, without their ``mw_`` prefix.\"\"\"\n\n")
	for _, f := range a.functions {
		fmt.Fprintf(out, "    %s: Callable[..., %s]\n", strings.TrimPrefix(f[3], "mw_"), returned(result(f[1], f[2])))
	}
}

// returned is what Python gets from a function with a ctypes result.
func returned(result string) string {
	switch {
	case result == "c_char_p":
		return "bytes"
	case strings.HasPrefix(result, "c_"):
		return "int"
	}
	return "Any"
}

func result(typ, pointer string) string {
	switch {
	case pointer == "":
		return pythonType(typ)
	case typ == "const char":
		return "c_char_p"
	}
	return "POINTER(" + pythonType(strings.TrimPrefix(typ, "const ")) + ")"
}

func argumentsOf(text string) (types []string, err error) {
	if text == "void" {
		return nil, nil
	}
	args, err := fieldsOf(strings.ReplaceAll(text, ",", ";"))
	for _, arg := range args {
		switch {
		case !arg.pointer && arg.length == nil: // C passes an array as a pointer
			types = append(types, pythonType(arg.typ))
		case arg.typ == "char" || arg.typ == "void":
			types = append(types, "c_void_p")
		default:
			types = append(types, "POINTER("+pythonType(arg.typ)+")")
		}
	}
	return types, err
}

// lineLength is that of ruff, which formats this file, too.
const lineLength = 100

// signature is one line of the table, or as many as it takes.
func signature(name, result string, args []string) string {
	tuple := "(" + strings.Join(args, ", ") + ")"
	if len(args) == 1 {
		tuple = "(" + args[0] + ",)"
	}
	if line := fmt.Sprintf("    %q: (%s, %s),", name, result, tuple); len(line) <= lineLength {
		return line + "\n"
	}
	if len("        "+tuple+",") > lineLength {
		tuple = "(\n            " + strings.Join(args, ",\n            ") + ",\n        )"
	}
	return fmt.Sprintf("    %q: (\n        %s,\n        %s,\n    ),\n", name, result, tuple)
}
