package cudatest

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
)

var offset = regexp.MustCompile(`\+0x[0-9a-f]+`)

// withLines puts lines of the sources where races are told by address.
func (d *Driver) withLines(text string) string {
	return offset.ReplaceAllStringFunc(text, func(at string) string {
		out, err := exec.Command("addr2line", "-s", "-e", d.path, at[1:]).Output()
		if err != nil {
			return at // no such tool
		}
		return strings.TrimSpace(string(out))
	})
}

// Watch makes every access that nothing orders a breach, as long as the test
// lasts. It comes before the group is made, and needs kernels that are Watched.
// Watching is slow: a test that does is in tier all (testenv.InAll).
func (d *Driver) Watch(t testing.TB) {
	t.Helper()
	d.watching.Call(1)
	t.Cleanup(func() { d.watching.Call(0) })
}

// Uses are the uses of ordering that were seen while watching.
func (d *Driver) Uses() []string {
	return strings.Split(strings.TrimSpace(dl.String(d.sites.Call())), "\n")
}

// LeaveOut makes one of them order nothing; "" none.
func (d *Driver) LeaveOut(use string) {
	name := append([]byte(use), 0)
	d.leavesOut.Call(uintptr(unsafe.Pointer(&name[0])))
}

// Hurry has every block of a kernel do what is for the last one, as long as the
// test lasts.
func (d *Driver) Hurry(t testing.TB, kernel string) {
	set := func(name string) { d.hurries.Call(uintptr(unsafe.Pointer(&append([]byte(name), 0)[0]))) }
	set(kernel)
	t.Cleanup(func() { set("") })
}

// Races is what was found while watching, and forgets.
func (d *Driver) Races() (text string) {
	for line := range strings.Lines(d.Said()) {
		if strings.Contains(line, "race") {
			text += line
		}
	}
	return text
}
