//go:build linux

package sys

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

var bootID struct {
	sync.Mutex
	text string
}

// BootID is the kernel's name for this boot of this host. It is read once: to read
// it takes a descriptor.
func BootID() (string, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	if err := injected("open " + path); err != nil {
		return "", fileError(path, err)
	}
	bootID.Lock()
	defer bootID.Unlock()
	if bootID.text != "" {
		return bootID.text, nil
	}
	text, err := os.ReadFile(path)
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("%s is empty", path)
	}
	if err != nil {
		return "", fileError(path, err)
	}
	bootID.text = strings.TrimSpace(string(text))
	return bootID.text, nil
}

// NetworkNamespace names the network namespace of this process. Another host may have the same name for one of its own.
func NetworkNamespace() (string, error) {
	const path = "/proc/self/ns/net"
	ns, err := os.Readlink(path)
	if err != nil {
		return "", fileError(path, err)
	}
	return ns, nil
}
