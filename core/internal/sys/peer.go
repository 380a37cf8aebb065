//go:build linux

package sys

import "golang.org/x/sys/unix"

// Credentials identify the process at the other end of a unix socket: the one that
// connected, or the one that called listen.
type Credentials struct {
	// PID is the process as seen from this process's pid namespace; 0 when
	// it cannot be seen from here.
	PID int
	// UID is the effective user.
	UID int
}

// PeerCredentials asks the kernel about the other end of conn.
func PeerCredentials(conn *FD) (Credentials, error) {
	c, err := unix.GetsockoptUcred(conn.Raw(), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Credentials{}, wrap("getsockopt SO_PEERCRED", err)
	}
	return Credentials{PID: int(c.Pid), UID: int(c.Uid)}, nil
}

// PeerPidfd returns a pidfd of the process at the other end of conn. It
// works across pid namespaces; Linux 6.5 or later.
func PeerPidfd(conn *FD) (*FD, error) {
	if err := injected("getsockopt SO_PEERPIDFD"); err != nil {
		return nil, wrap("getsockopt SO_PEERPIDFD", err)
	}
	raw, err := unix.GetsockoptInt(conn.Raw(), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return nil, wrap("getsockopt SO_PEERPIDFD", err)
	}
	return newFD(raw), nil
}

// PidfdID names the process of a pidfd as long as this host runs; 0 on kernels that have
// no such name (before 6.9).
func PidfdID(pidfd *FD) uint64 {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(pidfd.Raw(), &fs) != nil || int64(fs.Type) != unix.PID_FS_MAGIC || unix.Fstat(pidfd.Raw(), &st) != nil {
		return 0
	}
	return st.Ino
}

// KillPidfd ends the process of a pidfd with SIGKILL, a stopped one, too. The
// caller sees to it that the descriptor stays open meanwhile.
func KillPidfd(pidfd *FD) error {
	return wrap("pidfd_send_signal", unix.PidfdSendSignal(pidfd.Raw(), unix.SIGKILL, nil, 0))
}

// OpenPidfd returns a pidfd by process id. The id may meanwhile belong to
// another process: hear from the peer once more after this call.
func OpenPidfd(pid int) (*FD, error) {
	if err := injected("pidfd_open"); err != nil {
		return nil, wrap("pidfd_open", err)
	}
	raw, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, wrap("pidfd_open", err)
	}
	return newFD(raw), nil
}
