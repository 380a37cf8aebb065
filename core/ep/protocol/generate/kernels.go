package main

import (
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// mirrored are the structs that Go knows, with their names there.
var mirrored = []struct{ c, name string }{
	{"mw_inbox", "inbox"},
	{"mw_arena", "arena"},
	{"mw_slab", "slab"},
	{"mw_inflight", "inFlight"},
	{"mw_slot", "slot"},
	{"mw_remote_rest", "remoteRest"},
	{"mw_wait_times", "waitTimes"},
	{"mw_state", "state"},
	{"mw_host_control", "hostControl"},
	{"mw_report", "report"},
	{"mw_record", "Record"},
	{"mw_counters", "counters"},
	{"mw_common", "common"},
	{"mw_plan_args", "planArgs"},
	{"mw_place_args", "placeArgs"},
	{"mw_receive_args", "receiveArgs"},
	{"mw_publish_args", "publishArgs"},
	{"mw_wait_args", "waitArgs"},
	{"mw_reduce_args", "reduceArgs"},
	{"mw_move_args", "moveArgs"},
	{"mw_sum_args", "sumArgs"},
	{"mw_fifo", "queue"},
	{"mw_remote", "remoteRank"},
	{"mw_remote_common", "remoteCommon"},
	{"mw_remote_head", "remoteHead"},
	{"mw_remote_place", "remotePlace"},
	{"mw_remote_send_args", "remoteSendArgs"},
	{"mw_remote_take_args", "remoteTakeArgs"},
	{"mw_remote_order_args", "remoteOrderArgs"},
}

var headers = []string{"control_words.cuh", "fifo.cuh", "remote.cuh", "remote_message.cuh"}

// Names of fields that are not those of C in camel case, and types that say more.
var (
	fieldNames = map[string]string{"c": "Common", "fifo": "Queue", "topk": "TopK", "inflight": "InFlight"}
	fieldTypes = map[string]string{"mw_common.flags": "protocol.Flags"}
)

var goTypes = map[string]string{
	"u8": "uint8", "u32": "uint32", "u64": "uint64", "i32": "int32", "i64": "int64",
}

// kernelStructs is the Go file with the structs of the kernels' headers.
func kernelStructs(from tree) ([]byte, error) {
	bodies, err := kernelBodies(from.root)
	if err != nil {
		return nil, err
	}
	names := goNames(from.protocol.blocks())
	var out strings.Builder
	fmt.Fprintf(&out, "// %s\n\npackage cuda\n\nimport \"github.com/moewire/moewire/core/ep/protocol\"\n\n", notice)
	out.WriteString("// address is one in a device's address space.\ntype address = uint64\n")
	for _, s := range mirrored {
		body, ok := bodies[s.c]
		if !ok {
			return nil, fmt.Errorf("no header has struct %s", s.c)
		}
		if err := writeStruct(&out, names, s.c, s.name, body); err != nil {
			return nil, fmt.Errorf("%s: %w", s.c, err)
		}
	}
	return format.Source([]byte(out.String()))
}

var (
	structText  = regexp.MustCompile(`(?s)\nstruct (?:alignas\(\d+\) )?(mw_\w+) \{\n(.*?)\n\};`)
	lineComment = regexp.MustCompile(`//[^\n]*`)
)

// kernelBodies are the bodies of all structs, by name, without comments.
func kernelBodies(root string) (map[string]string, error) {
	bodies := map[string]string{}
	for _, header := range headers {
		text, err := os.ReadFile(filepath.Join(root, "core/device/cuda/kernels", header))
		if err != nil {
			return nil, err
		}
		for _, m := range structText.FindAllStringSubmatch(lineComment.ReplaceAllString(string(text), ""), -1) {
			bodies[m[1]] = m[2]
		}
	}
	return bodies, nil
}

// goNames are the names in Go of what a field is made of.
func goNames(blocks []block) map[string]string {
	names := map[string]string{}
	for c, name := range goTypes {
		names[c] = name
	}
	for _, s := range mirrored {
		names[s.c] = s.name
	}
	for _, b := range blocks {
		for _, c := range b.consts {
			names[cName(c.name)] = "protocol." + c.name
		}
	}
	return names
}

func writeStruct(out *strings.Builder, names map[string]string, c, name, body string) error {
	fields, err := fieldsOf(body)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n// %s mirrors %s of the kernels.\ntype %s struct {\n", name, c, name)
	for _, f := range fields {
		typ, err := goType(names, c, f)
		if err != nil {
			return err
		}
		if f.name == "pad" {
			fmt.Fprintf(out, "\t_ %s\n", typ)
			continue
		}
		fmt.Fprintf(out, "\t%s %s `c:%q`\n", goField(f.name), typ, f.name)
	}
	out.WriteString("}\n")
	return nil
}

var identifier = regexp.MustCompile(`[A-Za-z_]\w*`)

func goType(names map[string]string, c string, f field) (string, error) {
	typ, known := names[f.typ]
	if special := fieldTypes[c+"."+f.name]; special != "" {
		typ = special
	}
	if f.pointer {
		typ, known = "address", true
	}
	if !known {
		return "", fmt.Errorf("field %s has the type %s, which has no mirror", f.name, f.typ)
	}
	for i := len(f.length) - 1; i >= 0; i-- {
		length := identifier.ReplaceAllStringFunc(f.length[i], func(name string) string {
			if names[name] == "" {
				known = false
			}
			return names[name]
		})
		typ = "[" + length + "]" + typ
	}
	if !known {
		return "", fmt.Errorf("field %s has a length %q of constants that core/ep/protocol lacks", f.name, f.length)
	}
	return typ, nil
}

func goField(name string) string {
	if given := fieldNames[name]; given != "" {
		return given
	}
	out := ""
	for part := range strings.SplitSeq(name, "_") {
		out += strings.ToUpper(part[:1]) + part[1:]
	}
	return out
}

// kernelMirrors is the table by which a test has a C++ compiler compare the structs: the
// compiler knows alignment, and this generator does not.
func kernelMirrors(tree) ([]byte, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "// %s\n\npackage cuda\n\nvar mirrors = map[string]any{\n", notice)
	for _, s := range mirrored {
		fmt.Fprintf(&out, "\t%q: %s{},\n", s.c, s.name)
	}
	out.WriteString("}\n")
	return format.Source([]byte(out.String()))
}
