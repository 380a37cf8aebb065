package images

import (
	"embed"
	"errors"
	"io/fs"
)

// The folder has an archive in builds that were given one. (The pattern has no
// file's name, because a build without it is one, too.)
//
//go:embed prebuilt
var built embed.FS

// prebuilt is the archive, or nil.
func prebuilt() ([]byte, error) {
	data, err := built.ReadFile("prebuilt/kernels.bin")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}
