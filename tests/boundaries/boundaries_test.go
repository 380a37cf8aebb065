package boundaries

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// root is the repository's root, seen from this package.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTree(t *testing.T) {
	tree := os.DirFS(root(t))
	files, err := goFiles(tree)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found only %d Go files in %s: the check looks at the wrong place", len(files), root(t))
	}
	wrong, err := Check(tree)
	if err != nil {
		t.Fatal(err)
	}
	wrong = append(wrong, checkWordPlaces(files, wordPlaces)...)
	wrong = append(wrong, checkReaders(files, sharedReaders)...)
	for _, w := range append(wrong, CheckTables(files, layers, rooms)...) {
		t.Error(w)
	}
}

// TestCheckFinds gives the check one violation at a time.
func TestCheckFinds(t *testing.T) {
	imports := func(paths ...string) string {
		text := "package p\n"
		for _, p := range paths {
			text += "\nimport _ \"" + p + "\"\n"
		}
		return text
	}
	ours := func(pkg string) string { return imports(Module + "/" + pkg) }
	for _, c := range []struct {
		name, file, text string
		want             string // "" if nothing is wrong
	}{
		{"ep sees a transport", "core/ep/cpu/a.go", ours("core/group/shm"), "may not import core/group/shm"},
		{"ep sees a device", "core/ep/cpu/a.go", ours("core/device/cpu"), "may not import core/device/cpu"},
		{"ep sees interfaces", "core/ep/cpu/a.go", ours("core/group/domain"), ""},
		{"ep's test sees a transport", "core/ep/cpu/a_test.go", ours("core/group/inproc"), ""},
		{"ep sees system calls", "core/ep/cpu/a.go", ours("core/internal/sys"), "may not import"},
		{"a transport sees ep", "core/group/shm/a.go", ours("core/ep"), "may not import core/ep"},
		{"a device sees layout", "core/device/cpu/a.go", ours("core/ep/layout"), "may not import"},
		{"layout sees op", "core/ep/layout/a.go", ours("core/op"), "may not import core/op"},
		{"core sees capi", "core/ep/cpu/a.go", ours("capi"), "may not import capi"},
		{"a test sees capi", "core/ep/cpu/a_test.go", ours("capi"), "may not import capi"},
		{"capi sees all", "capi/a.go", ours("core/group/shm"), ""},
		{"a room nobody knows", "core/stuff/a.go", "package p\n", "no row in the table"},
		{"unsafe in ep", "core/ep/cpu/a.go", imports("unsafe"), "unsafe may not be imported"},
		{"unsafe in ep's test", "core/ep/cpu/a_test.go", imports("unsafe"), "unsafe may not be imported"},
		{"unsafe in the interfaces", "core/transport/a.go", imports("unsafe"), "unsafe may not"},
		{"unsafe in sys", "core/internal/sys/a.go", imports("unsafe"), ""},
		{"cgo in a transport", "core/group/shm/a.go", imports("C"), "C may not be imported"},
		{"cgo in the kernels", "core/device/cpu/a.go", imports("C"), ""},
		{"purego in capi", "capi/a.go", imports("github.com/ebitengine/purego"), "purego may not"},
		{"x/sys in shm", "core/group/shm/a.go", imports("golang.org/x/sys/unix"), "x/sys/unix may not"},
		{"x/sys in sys", "core/internal/sys/a.go", imports("golang.org/x/sys/unix"), ""},
		{"wide atomics in shm", "core/group/shm/a.go", imports("go.uber.org/atomic"), "atomic may not"},
		{"wide atomics in op", "core/op/a.go", imports("go.uber.org/atomic"), ""},
		{"not formatted", "core/op/a.go", "package p\nvar  x = 1\n", "is not formatted"},
		{"too long", "core/op/a.go", "package p\n" + strings.Repeat("\n// x\n", MaxLines/2), "lines, at most"},
		{"a long function", "core/op/a.go", functionOf(MaxFunctionLines + 1), "function f has 41 lines, at most"},
		{"a method", "core/device/cuda/gpubench/a.go", strings.Replace(functionOf(MaxFunctionLines+1), "func f", "func (x *T) f", 1), "function f has"},
		{"a function as long as allowed", "core/op/a.go", functionOf(MaxFunctionLines), ""},
		{"a long function of a test", "core/op/a_test.go", functionOf(MaxFunctionLines + 1), ""},
		{"a long function of the tests' own", "tests/model/a.go", functionOf(MaxFunctionLines + 1), ""},
		{"a loop over bits", "core/op/a.go", "package p\n\nfunc f(x uint64) {\n\tfor ; x != 0; x &= x - 1 {\n\t}\n}\n", "looks for bits by hand"},
		{"the lowest bit", "core/op/a.go", "package p\n\nvar f = bits.TrailingZeros64\n", "looks for bits by hand"},
		{"bits of endpoints", "core/transport/shmem/a.go", "package p\n\nvar f = bits.TrailingZeros64\n", ""},
		{"bits in a test", "core/op/a_test.go", "package p\n\nvar f = bits.TrailingZeros64\n", ""},
		{"another number of ranks", "core/op/a.go", "package p\n\nconst maxRanks = 48\n", "declares a number of ranks"},
		{"a name for the number of ranks", "core/op/a.go", "package p\n\nconst maxRanks = rankset.MaxRanks\n", ""},
		{"a word of a set in op", "core/op/a.go", "package p\n\nvar x = set.Word()\n", "no place where sets of ranks are words"},
		{"a set of a word in op", "core/op/a.go", "package p\n\nvar x = rankset.FromWord(1)\n", "no place where sets of ranks are words"},
		{"a word of a set in ep", "core/ep/cpu/a.go", "package p\n\nvar x = set.Word()\n", ""},
		{"a word of a segment", "core/op/a.go", "package p\n\nvar x = segment.Word(8)\n", ""},
		{"testdata is left alone", "core/op/testdata/a.go", imports("unsafe"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			wrong, err := Check(fstest.MapFS{c.file: {Data: []byte(c.text)}})
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.want == "" && len(wrong) > 0:
				t.Errorf("found %q in a tree where all is well", wrong)
			case c.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], c.want)):
				t.Errorf("found %q, want one line with %q", wrong, c.want)
			}
		})
	}
}

// TestReadersFinds gives the check of readers of shared memory one file at a time.
func TestReadersFinds(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		want             string // "" if nothing is wrong
	}{
		{"a word is loaded", "core/ep/cpu/a.go", "var x = s.Word(8).Load()", "takes a word"},
		{"a word is raised", "core/ep/cpu/a.go", "var x = s.Word(8).Add(1)", "takes a word"},
		{"a word is kept", "core/ep/cpu/a.go", "var x = s.own.Word(8)", "takes a word"},
		{"a word is stored", "core/ep/cpu/a.go", "func f() { s.Word(8).Store(1) }", ""},
		{"a word of sys", "core/link/a.go", "var x = sys.Word(data, 8)", "takes a word"},
		{"a word that a function finds", "core/ep/cpu/a.go", "var x = openWord(p, 1).Load()", "that a function has found"},
		{"a private atomic", "core/ep/cpu/a.go", "var x = b.ended.Load()", ""},
		{"bytes of a segment", "core/link/a.go", "var x = s.Bytes(0, 8)", "takes bytes"},
		{"all bytes", "core/link/a.go", "var x = s.Bytes()", ""},
		{"a set as a word", "core/ep/cpu/a.go", "var x = set.Word()", ""},
		{"a test", "core/ep/cpu/a_test.go", "var x = s.Word(8).Load()", ""},
		{"a file of the table", "core/ep/cpu/known.go", "var x = s.Word(8).Load()", ""},
		{"a file of the table that reads nothing", "core/ep/cpu/known.go", "var x = 1", "reads no shared memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := fstest.MapFS{c.file: {Data: []byte("package p\n\n" + c.text + "\n")}}
			var table []reader
			if strings.HasSuffix(c.file, "known.go") {
				table = []reader{{c.file, "it is a test"}}
			}
			files, err := goFiles(tree)
			if err != nil {
				t.Fatal(err)
			}
			wrong := checkReaders(files, table)
			switch {
			case c.want == "" && len(wrong) > 0:
				t.Errorf("found %q in a tree where all is well", wrong)
			case c.want != "" && (len(wrong) != 1 || !strings.Contains(wrong[0], c.want)):
				t.Errorf("found %q, want one line with %q", wrong, c.want)
			}
		})
	}
}

// functionOf is a file with a function of so many lines, which has a comment of three more.
func functionOf(lines int) string {
	comment := strings.Repeat("// f is short.\n", 3)
	return "package p\n\n" + comment + "func f() {\n" + strings.Repeat("\tf()\n", lines-2) + "}\n"
}

func TestHeaderFunctions(t *testing.T) {
	header := `/* mw_in_comment(x) */
typedef struct { uint64_t id; } mw_buffer_t; // mw_also_comment(void)
mw_status_t mw_two(mw_buffer_t b,
                   const char *name);
uint32_t mw_one(void);
`
	got := HeaderFunctions(header)
	if want := []string{"mw_two", "mw_one"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestCheckTablesFinds gives the tables one mistake at a time.
func TestCheckTablesFinds(t *testing.T) {
	files := []goFile{
		{pkg: "a"},
		{pkg: "b", imports: []string{Module + "/a", "unsafe"}},
		{pkg: "c", test: true, imports: []string{Module + "/a"}},
	}
	b, unsafeInB := layer{"b", []string{"a"}}, room{path: "unsafe", within: []string{"b"}}
	for _, c := range []struct {
		name   string
		layers []layer
		room   room
		want   string // "" if nothing is wrong
	}{
		{"all is well", []layer{{"a", nil}, b, {"c", nil}}, unsafeInB, ""},
		{"a layer twice", []layer{{"a", nil}, b, b}, unsafeInB, "layer b: there is no such package, or an earlier row has it"},
		{"no such layer", []layer{{"d", nil}}, unsafeInB, "layer d: there is no such package"},
		{"an allowance twice", []layer{{"a", nil}, {"b", []string{"a", "a/..."}}}, unsafeInB, "layer b: a is listed twice"},
		{"an allowance of nobody", []layer{{"a", nil}, {"b", []string{"a", "d"}}}, unsafeInB, "layer b: nothing but tests imports d"},
		{"an allowance of tests", []layer{{"a", nil}, {"c", []string{"a"}}}, unsafeInB, "layer c: nothing but tests imports a"},
		{"the higher layer first", []layer{b, {"a", nil}}, unsafeInB, "layer b: a is listed later"},
		{"a layer above itself", []layer{{"a", nil}, {"b", []string{"..."}}}, unsafeInB, "layer b: b is listed later"},
		{"a room twice", nil, room{"unsafe", []string{"b", "b"}, nil}, "room for unsafe: b is listed twice"},
		{"a room without use", nil, room{"unsafe", []string{"a"}, nil}, "room for unsafe: nothing in a imports it"},
		{"no such room", nil, room{"unsafe", []string{"d"}, nil}, "room for unsafe: nothing in d imports it"},
		{"no such exception", nil, room{"unsafe", []string{"b"}, []string{"d"}}, "room for unsafe: there is no package d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := strings.Join(CheckTables(files, c.layers, []room{c.room}), "\n")
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
