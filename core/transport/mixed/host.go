package mixed

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"strings"

	"github.com/moewire/moewire/core/internal/sys"
)

// host is where a process runs, as far as sharing memory goes.
type host struct {
	boot    [16]byte // of the kernel's boot id
	network uint64   // the network namespace: listeners of package shm are seen in one
	user    uint32
}

// thisHost finds out. name replaces the boot id, if not empty: ranks that give
// different names take one another for ranks of other hosts.
func thisHost(name string) host {
	h := host{user: uint32(sys.Geteuid())}
	if name == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if name = strings.TrimSpace(string(id)); err != nil {
			name, _ = os.Hostname()
		}
	}
	sum := sha256.Sum256([]byte("moewire host " + name))
	copy(h.boot[:], sum[:])
	if ns, err := os.Readlink("/proc/self/ns/net"); err == nil {
		sum := sha256.Sum256([]byte(ns))
		h.network = binary.LittleEndian.Uint64(sum[:])
	}
	return h
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
