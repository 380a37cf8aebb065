// Command prebuild compiles the kernels for all targets and packs them into an
// archive. It needs no GPU.
//
//	go run ./core/device/cuda/images/prebuild -cubins LIBNVRTC -ptx LIBNVRTC -out FILE [-uses FILE [-update]]
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/moewire/moewire/core/device/cuda/images"
	"github.com/moewire/moewire/core/device/cuda/kernels"
	"github.com/moewire/moewire/core/internal/libnvrtc"
)

func main() {
	cubins := flag.String("cubins", "", "the `library` that makes cubins")
	ptx := flag.String("ptx", "", "the `library` that makes PTX: drivers as old as it must read it")
	out := flag.String("out", "", "the archive")
	uses := flag.String("uses", "", "the recorded registers and shared memory: a difference is an error")
	update := flag.Bool("update", false, "rewrite what -uses names")
	flag.Parse()
	if err := run(*cubins, *ptx, *out, recorded{*uses, *update}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(cubins, ptx, out string, uses recorded) error {
	all, table, err := compile(cubins, kernels.Targets...)
	if err != nil {
		return err
	}
	if err := uses.check(table); err != nil {
		return err
	}
	portable, _, err := compile(ptx, kernels.PTXTarget)
	if err != nil {
		return err
	}
	if err := kernels.CheckPTX(string(portable[0].Code)); err != nil {
		return err
	}
	digest, err := kernels.Digest()
	if err != nil {
		return err
	}
	data, err := images.Pack(digest, append(all, portable...))
	if err != nil {
		return err
	}
	if _, err := images.Unpack(data, digest); err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes, sources %.12s\n", out, len(data), digest)
	return os.WriteFile(out, data, 0o644)
}

// recorded is a file that says what the kernels take.
type recorded struct {
	path   string
	update bool
}

func (r recorded) check(table string) error {
	if r.path == "" {
		return nil
	}
	if r.update {
		return os.WriteFile(r.path, []byte(table), 0o644)
	}
	want, err := os.ReadFile(r.path)
	if err != nil {
		return err
	}
	if err := kernels.CompareUses(string(want), table); err != nil {
		return fmt.Errorf("%s: %w; if that is meant: python wheels/build_kernels.py --update", r.path, err)
	}
	return nil
}

// compile makes code for some targets. A kernel that spills is an error: it
// would be slow, without a sign of why.
func compile(path string, targets ...string) (all []images.Image, table string, err error) {
	lib, err := libnvrtc.Load(path)
	if err != nil {
		return nil, "", err
	}
	major, minor, err := lib.Version()
	if err != nil {
		return nil, "", err
	}
	compiler := fmt.Sprintf("NVRTC %d.%d", major, minor)
	var made []kernels.Image
	for _, target := range targets {
		image, err := kernels.Compile(lib, target)
		if err != nil {
			return nil, "", err
		}
		for _, u := range image.Uses {
			if u.StackBytes+u.SpillLoadBytes+u.SpillStoreBytes != 0 {
				return nil, "", fmt.Errorf("%s for %s spills registers", u.Kernel, target)
			}
		}
		made = append(made, image)
		all = append(all, images.Image{Target: target, Compiler: compiler, Code: image.Code})
		fmt.Printf("%-10s %7d bytes by %s\n", target, len(image.Code), compiler)
	}
	return all, kernels.UsesTable(compiler, made), nil
}
