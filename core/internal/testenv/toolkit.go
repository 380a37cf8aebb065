package testenv

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Toolkit finds a file of the CUDA packages that the tests' requirements name,
// such as "include/cuda.h" or "lib/libnvrtc.so.*": in the virtual environment of
// MOEWIRE_VENV or of the tree, else where a toolkit is installed.
func Toolkit(t testing.TB, pattern string) string {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	tree := filepath.Join(filepath.Dir(here), "../../..")
	const packages = "lib/python3*/site-packages/nvidia/cu13"
	for _, dir := range []string{
		filepath.Join(os.Getenv("MOEWIRE_VENV"), packages), filepath.Join(tree, ".venv", packages),
		os.Getenv("CUDA_HOME"), "/usr/local/cuda",
	} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
			return found[0]
		}
	}
	Lacking(t, "toolkit", "no "+pattern+" of CUDA's packages in .venv, MOEWIRE_VENV, CUDA_HOME or /usr/local/cuda")
	return ""
}
