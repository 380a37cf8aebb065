//go:build linux

package sys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// The kernel says one id, the overflow id, of every user that this process's user
// namespace does not map. A process that runs under that id itself would take all
// of them for its own user.

// ErrUnmappedUser means that a user id says nothing: see CheckUser.
var ErrUnmappedUser = errors.New("it is the id that the kernel says of every user whom this user namespace does not map " +
	"(/proc/sys/kernel/overflowuid), so it may be anybody; run under a user id that the namespace maps")

// CheckUser reports whether a user id, as the kernel has told it of a process or
// a file, is that of this process. what is that process or file, for the error.
func CheckUser(what string, uid int) error {
	view, err := users()
	if err != nil {
		return fmt.Errorf("whose %s is cannot be told: %w", what, err)
	}
	return view.check(what, uid)
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
	overflow int  // the id of those who are not mapped
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

// users asks the kernel anew: a namespace is given its map after it was made. Without
// /proc the overflow id is the kernel's own, and nobody is mapped. What cannot be read
// for another reason is an error: a guess could let a stranger in.
func users() (userView, error) {
	v := userView{own: Geteuid(), overflow: defaultOverflow}
	text, err := readProc("/proc/sys/kernel/overflowuid")
	if err != nil {
		return v, err
	}
	if id, err := strconv.Atoi(text); err == nil {
		v.overflow = id
	}
	if v.own == v.overflow { // nobody else is taken for this one
		text, err := readProc("/proc/self/uid_map")
		v.total = numMapped(text) == numUsers
		return v, err
	}
	return v, nil
}

// readProc reads a file of /proc; nothing if there is none.
func readProc(path string) (string, error) {
	if err := injected("open " + path); err != nil {
		return "", fileError(path, err)
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fileError(path, err)
	}
	return strings.TrimSpace(string(text)), nil
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
