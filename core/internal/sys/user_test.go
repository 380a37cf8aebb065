//go:build linux

package sys

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/moewire/moewire/core/internal/testenv"
)

func TestUserView(t *testing.T) {
	for _, c := range []struct {
		name string
		view userView
		uid  int
		want string // "": it is this process's user
	}{
		{"the same", userView{own: 1000, overflow: 65534}, 1000, ""},
		{"another", userView{own: 1000, overflow: 65534}, 1001, "belongs to user id 1001, this process to 1000"},
		{"nobody's, seen by somebody", userView{own: 1000, overflow: 65534}, 65534, "this process to 1000"},
		{"nobody, where all are mapped", userView{own: 65534, overflow: 65534, total: true}, 65534, ""},
		{"nobody, where not all are", userView{own: 65534, overflow: 65534}, 65534, "any of them may be its owner"},
		{"nobody, under another name", userView{own: 99, overflow: 99}, 99, "any of them may be its owner"},
		{"another of nobody's", userView{own: 65534, overflow: 65534}, 1000, "this process to 65534"},
	} {
		err := c.view.check("process 7", c.uid)
		if c.want == "" {
			require.NoError(t, err, c.name)
			continue
		}
		require.ErrorContains(t, err, "process 7 ", c.name)
		require.ErrorContains(t, err, c.want, c.name)
	}
}

func TestNumMapped(t *testing.T) {
	for text, want := range map[string]uint64{
		"":                                   0,
		"         0          0 4294967295\n": numUsers,
		"0 1000 1\n":                         1,
		"0 100000 65536\n65536 1 1\n":        65537,
		"0 0\n":                              0,
		"0 0 many\n":                         0,
		"0 0 2147483648\n2147483648 0 2147483647\n": numUsers,
	} {
		require.Equal(t, want, numMapped(text), "%q", text)
	}
}

// TestUnknownUser: where the kernel cannot be asked which id belongs to no user, and
// which users a namespace maps, a process of the same id is neither let in nor taken for
// another user's; the error says what is short. What another id says needs no look.
func TestUnknownUser(t *testing.T) {
	was := overflow.known
	defer func() { overflow.known = was }()
	for path, view := range map[string]userView{
		"/proc/sys/kernel/overflowuid": {own: Geteuid()},
		"/proc/self/uid_map":           {own: 65534},
	} {
		for _, errno := range []syscall.Errno{unix.EMFILE, unix.ENFILE} {
			overflow.known = path == "/proc/self/uid_map"
			overflow.id = 65534
			stop := InjectFaults(func(call string) error {
				if call == "open "+path {
					return errno
				}
				return nil
			})
			err := view.look()
			require.True(t, IsShortage(err), "%v", err)
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, "limit")
			if path != "/proc/self/uid_map" {
				err = CheckUser("process 7", Geteuid())
				require.True(t, IsShortage(err), "%v", err)
				require.ErrorContains(t, err, "whether process 7 belongs to the user of this process is not known: open "+path)
				require.NotErrorIs(t, err, ErrUnmappedUser)
				require.ErrorContains(t, CheckUser("process 7", Geteuid()+1), "process 7 belongs to user id")
			}
			stop()
		}
	}
	overflow.known = false
	withLimit(t, 0, func() {
		require.ErrorContains(t, CheckUser("this process", Geteuid()), "too many open files, limit 0 (RLIMIT_NOFILE")
	})
	require.NoError(t, CheckUser("this process", Geteuid()))
	require.True(t, overflow.known)
	stop := InjectFaults(func(string) error { return unix.EMFILE })
	defer stop()
	require.NoError(t, CheckUser("this process", Geteuid()), "it is read once")
}

const userVariable = "MOEWIRE_TEST_SYS_USER"

// TestOverflowUser: in a user namespace that maps no user, a process runs as the overflow
// user, and so does every process outside, as far as it can see. It takes none of them
// for its own user.
func TestOverflowUser(t *testing.T) {
	if os.Getenv(userVariable) != "" {
		conn := newFD(3) // the other end is that of a process outside
		cred, err := PeerCredentials(conn)
		require.NoError(t, err)
		require.Equal(t, cred.UID, Geteuid(), "which was taken for the same user")
		require.ErrorIs(t, CheckUser("process", cred.UID), ErrUnmappedUser)
		info, err := os.Stat("/proc/1/cmdline")
		require.NoError(t, err)
		require.ErrorIs(t, CheckOwner("/proc/1/cmdline", int(info.Sys().(*syscall.Stat_t).Uid)), ErrUnmappedUser)
		return
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "theirs")
	defer theirs.Close()
	child := exec.Command(os.Args[0], "-test.run=^TestOverflowUser$", "-test.v")
	child.Env = append(os.Environ(), userVariable+"=1")
	child.ExtraFiles = []*os.File{theirs}
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	out, err := child.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "TestOverflowUser") {
		testenv.Lacking(t, "userns", "no user namespace can be made: "+err.Error())
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestOverflowUser")
	require.NoError(t, CheckUser("this process", Geteuid()))
}
