//go:build linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// The kernel says one id, the overflow id, of every user that this process's user
// namespace does not map. A process that runs under that id itself would take all
// of them for its own user.

// ErrUnmappedUser means that a user id says nothing: see CheckUser.
var ErrUnmappedUser = errors.New("it is the id that the kernel says of every user whom this user namespace does not map " +
	"(/proc/sys/kernel/overflowuid), so any of them may be its owner; run under a user id that the namespace maps")

// CheckUser reports whether a user id, as the kernel has told it of a process or
// a file, is that of this process. what is that process or file, for the error.
// Where the kernel cannot be asked, for want of descriptors for instance, the error
// says that: IsShortage.
func CheckUser(what string, uid int) error {
	v := userView{own: Geteuid()}
	if uid == v.own {
		if err := v.look(); err != nil {
			return fmt.Errorf("whether %s belongs to the user of this process is not known: %w", what, err)
		}
	}
	return v.check(what, uid)
}

// CheckOwner is CheckUser for what may belong to root, too.
func CheckOwner(what string, uid int) error {
	if uid == 0 {
		return nil
	}
	return CheckUser(what, uid)
}

// userView is how this process sees users.
type userView struct {
	own      int
	overflow int  // the id of users that are not mapped
	total    bool // there are none of these
}

func (v userView) check(what string, uid int) error {
	switch {
	case uid != v.own:
		return fmt.Errorf("%s belongs to user id %d, this process to %d", what, uid, v.own)
	case uid == v.overflow && !v.total:
		return fmt.Errorf("%s belongs to user id %d: %w", what, uid, ErrUnmappedUser)
	}
	return nil
}

// defaultOverflow is the kernel's own; numUsers is how many ids there are: the
// last one is none.
const (
	defaultOverflow = 65534
	numUsers        = 1<<32 - 1
)

// look asks the kernel which other users have the id of this process. It asks for the map
// anew, since a namespace is given one after it was made. A map that is not there maps no
// user; one that cannot be read says nothing.
func (v *userView) look() (err error) {
	if v.overflow, err = overflowUser(); err != nil || v.own != v.overflow {
		return err // no other user is taken for this one
	}
	text, err := readText("/proc/self/uid_map")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	v.total = numMapped(text) == numUsers
	return nil
}

// overflow is the id of users that are not mapped, once it is known: to read it takes a
// descriptor.
var overflow struct {
	sync.Mutex
	known bool
	id    int
}

func overflowUser() (int, error) {
	overflow.Lock()
	defer overflow.Unlock()
	if overflow.known {
		return overflow.id, nil
	}
	const path = "/proc/sys/kernel/overflowuid"
	text, err := readText(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return defaultOverflow, nil
	case err != nil:
		return 0, err
	}
	id, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("%s is %.20q, not a user id", path, text)
	}
	overflow.known, overflow.id = true, id
	return id, nil
}

// readText reads a file of the kernel's.
func readText(path string) (string, error) {
	err := injected("open " + path)
	if err == nil {
		var text []byte
		if text, err = os.ReadFile(path); err == nil {
			return string(text), nil
		}
	}
	return "", fileError(path, err)
}

// numMapped counts the users of a map: lines of first here, first outside, how many.
func numMapped(text string) (n uint64) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return 0
		}
		num, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return 0
		}
		n += num
	}
	return n
}
