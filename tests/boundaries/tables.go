package boundaries

import (
	"fmt"
	"slices"
)

// CheckTables returns what is wrong with the tables themselves, one sentence
// each: a line that says nothing about the tree allows what was never decided.
func CheckTables(files []goFile, layers []layer, rooms []room) []string {
	var wrong []string
	for i, l := range layers {
		wrong = append(wrong, checkRow(files, layers[:i], l)...)
		wrong = append(wrong, checkOrder(layers, i)...)
		wrong = append(wrong, checkTwice("layer "+l.pkg, l.imports)...)
	}
	for _, r := range rooms {
		wrong = append(wrong, checkTwice("room for "+r.path, r.within)...)
		wrong = append(wrong, checkTwice("room for "+r.path, r.except)...)
		wrong = append(wrong, checkRoom(files, r)...)
	}
	return wrong
}

// checkRow looks for a layer that has no package, and for allowances that none
// of its packages uses. A package belongs to the first row that matches it.
func checkRow(files []goFile, before []layer, l layer) []string {
	known := false
	unused := slices.Clone(l.imports)
	for _, f := range files {
		earlier := slices.ContainsFunc(before, func(b layer) bool { return matches(b.pkg, f.pkg) })
		if earlier || !matches(l.pkg, f.pkg) {
			continue
		}
		known = true
		if f.test {
			continue // may import anything in core anyway
		}
		unused = slices.DeleteFunc(unused, func(allowed string) bool {
			return slices.ContainsFunc(f.imports, func(imported string) bool {
				return matches(Module+"/"+allowed, imported)
			})
		})
	}
	if !known {
		return []string{fmt.Sprintf("layer %s: there is no such package, or an earlier row has it", l.pkg)}
	}
	var wrong []string
	for _, allowed := range unused {
		wrong = append(wrong, fmt.Sprintf("layer %s: nothing but tests imports %s", l.pkg, allowed))
	}
	return wrong
}

// checkOrder holds a layer's allowances to the layers above it in the table.
func checkOrder(layers []layer, at int) []string {
	var wrong []string
	for _, allowed := range layers[at].imports {
		for _, l := range layers[at:] {
			if matches(allowed, l.pkg) {
				wrong = append(wrong, fmt.Sprintf("layer %s: %s is listed later", layers[at].pkg, l.pkg))
			}
		}
	}
	return wrong
}

// checkTwice looks for patterns of which another one says the same.
func checkTwice(what string, patterns []string) []string {
	var wrong []string
	for i, p := range patterns {
		others := slices.Delete(slices.Clone(patterns), i, i+1)
		if matchesAny(others, p) {
			wrong = append(wrong, fmt.Sprintf("%s: %s is listed twice", what, p))
		}
	}
	return wrong
}

// checkRoom looks for places that do not exist, or need no room.
func checkRoom(files []goFile, r room) []string {
	var wrong []string
	for _, place := range r.within {
		if !slices.ContainsFunc(files, func(f goFile) bool {
			uses := slices.ContainsFunc(f.imports, func(i string) bool { return matches(r.path, i) })
			return place == "..." || matches(place, f.pkg) && uses
		}) {
			wrong = append(wrong, fmt.Sprintf("room for %s: nothing in %s imports it", r.path, place))
		}
	}
	for _, place := range r.except {
		if !slices.ContainsFunc(files, func(f goFile) bool { return matches(place, f.pkg) }) {
			wrong = append(wrong, fmt.Sprintf("room for %s: there is no package %s", r.path, place))
		}
	}
	return wrong
}
