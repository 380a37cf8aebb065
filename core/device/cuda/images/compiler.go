package images

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/moewire/moewire/core/device/cuda/kernels"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libnvrtc"
)

// sonames of the compilers that compile the kernels, the newest first.
var sonames = []string{"libnvrtc.so.13", "libnvrtc.so.12"}

type nvrtc struct{ *libnvrtc.Library }

func (n nvrtc) compile(target string) ([]byte, error) {
	image, err := kernels.CompileHastily(n.Library, target)
	return image.Code, err
}

// loadCompiler opens the first NVRTC of: MOEWIRE_NVRTC, and nothing else if that
// is set; what the process has open; the caller's places; the loader's; CUDA_HOME.
func loadCompiler(o Options) (compiler, error) {
	lib, err := OpenNVRTC(o)
	if err != nil {
		return nil, err
	}
	return nvrtc{lib}, nil
}

// OpenNVRTC opens the compiler that For would compile with.
func OpenNVRTC(o Options) (*libnvrtc.Library, error) {
	lib, err := openCompiler(o, os.Getenv)
	if err != nil {
		return nil, err
	}
	return libnvrtc.New(lib)
}

func openCompiler(o Options, env func(string) string) (*dl.Library, error) {
	if path := env("MOEWIRE_NVRTC"); path != "" {
		return dl.Open(inFolder(path)...)
	}
	if lib, err := dl.OpenLoaded(sonames...); err == nil {
		return lib, nil
	}
	return dl.Open(places(o, env)...)
}

// places are the candidates that have to be opened.
func places(o Options, env func(string) string) (all []string) {
	for _, path := range o.NVRTC {
		all = append(all, inFolder(path)...)
	}
	all = append(all, sonames...)
	for _, name := range []string{"CUDA_HOME", "CUDA_PATH"} {
		if home := env(name); home != "" {
			all = append(all, inFolder(filepath.Join(home, "lib64"))...)
		}
	}
	return all
}

// inFolder are the compilers of a folder by their sonames; another path is
// taken for the compiler's own.
func inFolder(path string) (all []string) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []string{path}
	}
	for _, name := range sonames {
		all = append(all, filepath.Join(path, name))
	}
	return slices.Clip(all)
}
