package main

import (
	"fmt"
	"regexp"
	"strings"
)

// field is one field of a struct in C.
type field struct {
	typ, name string
	pointer   bool
	length    []string // of an array, by dimension
}

var (
	declaration = regexp.MustCompile(`^(?:const )?(\w+)\s+(.*)$`)
	declarator  = regexp.MustCompile(`^(\*?)(\w+)((?:\[[^\]]+\])*)$`)
	dimension   = regexp.MustCompile(`\[([^\]]+)\]`)
)

// fieldsOf parses a struct's body that has no comments.
func fieldsOf(body string) (fields []field, err error) {
	for decl := range strings.SplitSeq(body, ";") {
		decl = strings.Join(strings.Fields(decl), " ")
		if decl == "" {
			continue
		}
		m := declaration.FindStringSubmatch(decl)
		if m == nil {
			return nil, fmt.Errorf("cannot read %q", decl)
		}
		for one := range strings.SplitSeq(m[2], ",") {
			d := declarator.FindStringSubmatch(strings.TrimSpace(one))
			if d == nil {
				return nil, fmt.Errorf("cannot read %q", decl)
			}
			f := field{typ: m[1], name: d[2], pointer: d[1] != ""}
			for _, n := range dimension.FindAllStringSubmatch(d[3], -1) {
				f.length = append(f.length, n[1])
			}
			fields = append(fields, f)
		}
	}
	return fields, nil
}
