package sys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShortagesNameTheLimit: whatever a call lacks, its error says what that is and
// how much there may be of it, and unwraps to the kernel's number.
func TestShortagesNameTheLimit(t *testing.T) {
	hostLimits()
	memory, err := NewMemfd("test")
	fatal(t, err)
	defer memory.Close()
	epoll, err := NewEpoll()
	fatal(t, err)
	defer epoll.Close()
	fatal(t, Grow(memory, 4096))
	mapped, err := Map(memory, 0, 4096)
	fatal(t, err)
	defer mapped.Unmap()
	calls := map[string]func() error{
		"accept4":                 func() error { _, err := Accept(memory); return err },
		"socket":                  func() error { _, err := newSocket(); return err },
		"memfd_create":            func() error { _, err := NewMemfd("test"); return err },
		"eventfd":                 func() error { _, err := NewEvent(); return err },
		"epoll_create1":           func() error { _, err := NewPoller(); return err },
		"epoll_ctl add":           func() error { return epoll.Add(memory, 1) },
		"fcntl F_DUPFD_CLOEXEC":   func() error { _, err := Dup(memory); return err },
		"pidfd_open":              func() error { _, err := OpenPidfd(1); return err },
		"getsockopt SO_PEERPIDFD": func() error { _, err := PeerPidfd(memory); return err },
		"ftruncate":               func() error { return Grow(memory, 4096) },
		"mmap":                    func() error { _, err := Map(memory, 0, 4096); return err },
		"mremap":                  func() error { _, err := mapped.MapMore(0, 4096); return err },
	}
	says := map[syscall.Errno]string{
		syscall.EMFILE: ", limit " + limitText(syscall.RLIMIT_NOFILE) + " (RLIMIT_NOFILE of this process: ulimit -n)",
		syscall.ENFILE: ", limit " + hostLimits().files + " (fs.file-max of this host)",
		syscall.ENOMEM: "memory.max", syscall.ENOSPC: "", syscall.ENOBUFS: tcpPages(t) + " pages of all of TCP (net.ipv4.tcp_mem)",
	}
	for name, call := range calls {
		for errno, limit := range says {
			stop := InjectFaults(func(call string) error {
				if call == name {
					return errno
				}
				return nil
			})
			err := call()
			stop()
			if !errors.Is(err, errno) || !strings.HasPrefix(err.Error(), name+": "+errno.Error()+", ") || !strings.Contains(err.Error(), limit) {
				t.Errorf("%s with %v: %v", name, errno, err)
			}
			if !IsShortage(err) {
				t.Errorf("%v is no shortage", err)
			}
			if errno == syscall.ENOSPC && !amount.MatchString(err.Error()) {
				t.Errorf("%v names no amount", err)
			}
		}
	}
	if err := wrap("accept4", syscall.ECONNABORTED); IsShortage(err) || err.Error() != "accept4: software caused connection abort" {
		t.Error(err)
	}
}

// amount is how much there is of what was used up.
var amount = regexp.MustCompile(`limit \d+ watched descriptors|\d+ of \d+ bytes, and \d+ bytes of swap space, are free`)

// tcpPages is the last number of net.ipv4.tcp_mem, "unknown" where this namespace has none.
func tcpPages(t *testing.T) string {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_mem")
	if err != nil {
		return "unknown"
	}
	numbers := strings.Split(strings.TrimSpace(string(text)), "\t")
	require.Len(t, numbers, 3)
	return " " + numbers[2]
}

// TestFullDiskNamesWhatIsFree: a call that lacks room in a file says how much its file system has: the
// numbers of the kernel. One that lacks a quota says so, and is no shortage of the host.
func TestFullDiskNamesWhatIsFree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	fd, err := OpenFile(path)
	fatal(t, err)
	defer fd.Close()
	var s syscall.Statfs_t
	fatal(t, syscall.Statfs(path, &s))
	ends := fmt.Sprintf(" of %d bytes and ", s.Blocks*uint64(s.Frsize))
	calls := map[string]func() error{
		"pwrite":    func() error { return WriteAt(fd, 0, []byte("x")) },
		"fallocate": func() error { return Reserve(fd, 0, 1) },
		"fdatasync": func() error { return Datasync(fd) },
		"open":      func() error { _, err := OpenFile(path); return err },
	}
	for name, call := range calls {
		for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
			stop := FailCall(name, errno)
			err := call()
			stop()
			require.ErrorIs(t, err, errno)
			require.Contains(t, err.Error(), ": "+errno.Error()+", ")
			require.Contains(t, err.Error(), ends, name)
			require.Regexp(t, `\d+ of \d+ files of its file system are free`, err.Error())
			require.Equal(t, errno == syscall.ENOSPC, IsShortage(err))
		}
	}
	full, err := OpenFile("/dev/full") // the kernel's own error
	fatal(t, err)
	defer full.Close()
	require.Regexp(t, `^pwrite: no space left on device, \d+ of \d+ bytes and `, WriteAt(full, 0, []byte("x")).Error())
}

// withLimit runs f while no descriptor from limit on can be made.
func withLimit(t *testing.T, limit uint64, f func()) {
	t.Helper()
	var before syscall.Rlimit
	fatal(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	fatal(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: before.Max}))
	defer func() { fatal(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)) }()
	f()
}

// TestNoPlaceForWhatComes: a descriptor that this process has no place for is its
// own shortage, not a message that is too large; the message is there.
func TestNoPlaceForWhatComes(t *testing.T) {
	a, b := pair(t)
	event, err := NewEvent()
	fatal(t, err)
	defer event.Close()
	before := Stats().OpenFDs
	buf := make([]byte, 8)
	for _, numFDs := range []int{1, 2} {
		fatal(t, Send(a, []byte("hello"), []*FD{event, event}[:numFDs]...))
		withLimit(t, 3, func() {
			n, fds, err := Receive(b, buf, 2)
			if !errors.Is(err, syscall.EMFILE) || errors.Is(err, ErrTooLarge) || string(buf[:n]) != "hello" || fds != nil {
				t.Errorf("%q, %v, %v", buf[:n], fds, err)
			}
			if want := "recvmsg: too many open files, limit 3 (RLIMIT_NOFILE"; err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		})
	}
	if got := Stats().OpenFDs; got != before {
		t.Errorf("%d open descriptors, had %d", got, before)
	}
}

// TestIdentitiesAreReadOrRefused: what names this host is never guessed.
func TestIdentitiesAreReadOrRefused(t *testing.T) {
	bootID.Lock()
	bootID.text = "" // as in a process that has not read it
	bootID.Unlock()
	withLimit(t, 0, func() {
		if id, err := BootID(); !errors.Is(err, syscall.EMFILE) || id != "" || !strings.Contains(err.Error(), "limit 0") {
			t.Errorf("%q, %v", id, err)
		}
	})
	want, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	fatal(t, err)
	id, err := BootID()
	if fatal(t, err); id != strings.TrimSpace(string(want)) {
		t.Errorf("%q", id)
	}
	withLimit(t, 0, func() { // known by now
		again, err := BootID()
		if fatal(t, err); again != id {
			t.Errorf("%q", again)
		}
		ns, err := NetworkNamespace()
		if fatal(t, err); !strings.HasPrefix(ns, "net:[") {
			t.Errorf("%q", ns)
		}
	})
}

// TestRaiseOpenFiles: to the hard limit, and no further than children can bear.
func TestRaiseOpenFiles(t *testing.T) {
	var before syscall.Rlimit
	fatal(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	withLimit(t, 100, func() {
		got, err := raiseOpenFiles()
		fatal(t, err)
		if want := (OpenFiles{100, min(before.Max, maxOpenFiles), before.Max}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		var now syscall.Rlimit
		fatal(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now))
		if now.Cur != got.Soft || now.Max != before.Max {
			t.Errorf("%+v", now)
		}
		if again, err := raiseOpenFiles(); err != nil || again.Before != got.Soft || again.Soft != got.Soft {
			t.Errorf("%+v, %v", again, err)
		}
	})
}

// TestNoMemoryBehindAnAddress: where the host promises no more than it has, a call into
// memory that it cannot provide fails with EFAULT: the error names what is used up.
func TestNoMemoryBehindAnAddress(t *testing.T) {
	defer func(real func() limitsOfHost) { hostLimits = real }(hostLimits)
	for overcommit, names := range map[string]bool{"0": false, "1": false, "2": true} {
		hostLimits = func() limitsOfHost { return limitsOfHost{overcommit: overcommit} }
		err := wrap("recvmsg", syscall.EFAULT)
		require.ErrorIs(t, err, syscall.EFAULT)
		require.Equal(t, names, strings.Contains(err.Error(), "vm.overcommit_memory is 2: CommitLimit"), err)
		require.False(t, IsShortage(err), "it may be a mistake")
	}
}
