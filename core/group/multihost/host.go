package multihost

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/moewire/moewire/core/internal/sys"
)

// host is where a process runs, as far as sharing memory goes.
type host struct {
	boot    [16]byte // of the kernel's boot id
	network uint64   // the network namespace: listeners of package shm are seen in one
	user    uint32
}

// thisHost finds out. name replaces the boot id, if not empty: ranks that give different
// names take one another for ranks of other hosts. A value that cannot be read is an
// error: a guess would make ranks of one host remote to one another.
func thisHost(name string) (h host, err error) {
	h.user = uint32(sys.Geteuid())
	if name == "" {
		if name, err = sys.BootID(); err != nil {
			return h, fmt.Errorf("which host this is cannot be told: %w", err)
		}
	}
	sum := sha256.Sum256([]byte("moewire host " + name))
	copy(h.boot[:], sum[:])
	ns, err := sys.NetworkNamespace()
	if err != nil {
		return h, fmt.Errorf("which network namespace this is cannot be told: %w", err)
	}
	sum = sha256.Sum256([]byte(ns))
	h.network = binary.LittleEndian.Uint64(sum[:])
	return h, nil
}

// differs says why two processes cannot share memory; "" if they can.
func (h *host) differs(o *host) string {
	switch {
	case h.boot != o.boot:
		return "another host"
	case h.network != o.network:
		return "another network namespace of this host"
	case h.user != o.user:
		return "another user of this host"
	}
	return ""
}
