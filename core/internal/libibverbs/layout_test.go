package libibverbs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// mirrors lists each mirror with its C struct. Heads end before the C struct
// does, so their sizes differ.
var mirrors = []struct {
	c    string
	of   any
	head bool
}{
	{"struct ibv_device_attr", DeviceAttr{}, false},
	{"struct ibv_port_attr", PortAttr{}, false},
	{"struct ibv_gid_entry", GIDEntry{}, false},
	{"struct ibv_qp_cap", QPCap{}, false},
	{"struct ibv_qp_init_attr", QPInitAttr{}, false},
	{"struct ibv_ah_attr", AHAttr{}, false},
	{"struct ibv_qp_attr", QPAttr{}, false},
	{"struct ibv_async_event", AsyncEvent{}, false},
	{"struct ibv_sge", SGE{}, false},
	{"struct ibv_send_wr", SendWR{}, false},
	{"struct ibv_recv_wr", RecvWR{}, false},
	{"struct ibv_wc", WC{}, false},
	{"struct ibv_context", ContextHead{}, true},
	{"struct ibv_qp", QPHead{}, true},
	{"struct ibv_mr", MRBody{}, false},
	{"struct ibv_comp_channel", CompChannelBody{}, false},
	{"struct ibv_srq_init_attr", SRQInitAttr{}, false},
	{"struct ibv_qp_init_attr_ex", QPInitAttrEx{}, false},
	{"struct mlx5dv_qp_init_attr", Mlx5QPInitAttr{}, false},
	{"struct ibv_qp_ex", QPExHead{}, true},
	{"struct mlx5dv_qp_ex", Mlx5QPExHead{}, true},
}

// TestLayoutIsThatOfTheHeader has a C compiler say where everything is.
func TestLayoutIsThatOfTheHeader(t *testing.T) {
	want := ask(t, questions())
	for question, got := range answers() {
		assert.Equal(t, want[question], fmt.Sprint(got), question)
	}
}

// questions are C expressions with values that the mirrors claim to know.
func questions() (all []string) {
	for q := range answers() {
		all = append(all, q)
	}
	return all
}

// answers are the mirrors' claims by C expression.
func answers() map[string]uint64 {
	all := map[string]uint64{}
	for _, m := range mirrors {
		typ := reflect.TypeOf(m.of)
		if !m.head {
			all[fmt.Sprintf("sizeof(%s)", m.c)] = uint64(typ.Size())
		}
		for f := range typ.Fields() {
			if name := f.Tag.Get("c"); name != "" {
				all[fmt.Sprintf("offsetof(%s, %s)", m.c, name)] = uint64(f.Offset)
				all[fmt.Sprintf("sizeof(((%s *)0)->%s)", m.c, name)] = uint64(f.Type.Size())
			}
		}
	}
	for name, value := range constants {
		all[name] = value
	}
	return all
}

// ask compiles and runs a program that prints the value of each expression.
func ask(t *testing.T, expressions []string) map[string]string {
	cc, err := exec.LookPath("cc")
	if err != nil {
		testenv.Lacking(t, "verbs", "no C compiler for the probe")
	}
	var source bytes.Buffer
	source.WriteString("#include <infiniband/verbs.h>\n#include <infiniband/mlx5dv.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n")
	for _, e := range expressions {
		fmt.Fprintf(&source, "printf(\"%%s=%%llu\\n\", %q, (unsigned long long)(%s));\n", e, e)
	}
	source.WriteString("}\n")
	dir := t.TempDir()
	file, program := filepath.Join(dir, "probe.c"), filepath.Join(dir, "probe")
	require.NoError(t, os.WriteFile(file, source.Bytes(), 0o600))
	text, err := exec.Command(cc, "-I", includeFolder(t), "-o", program, file).CombinedOutput()
	require.NoError(t, err, "%s", text)
	text, err = exec.Command(program).Output()
	require.NoError(t, err)
	values := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		values[name] = value
	}
	require.Len(t, values, len(expressions))
	return values
}

// includeFolder is where the header is: the system's, or that of the packages
// that tests/rdma keeps for its virtual machine.
func includeFolder(t *testing.T) string {
	const header = "infiniband/mlx5dv.h" // verbs.h is beside it
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	for _, dir := range []string{"/usr/include", filepath.Join(cache, "moewire/rdma/userland/usr/include")} {
		if _, err := os.Stat(filepath.Join(dir, header)); err == nil {
			return dir
		}
	}
	testenv.Lacking(t, "verbs", "no "+header+": python3 tests/rdma/machine.py prepare fetches it")
	return ""
}
