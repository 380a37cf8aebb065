package wire

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// somebody is a user that is neither root nor, in these tests, this process's.
const somebody = 12345

// TestKeyFileOwnerAndFolders: a key that another user has put there, or could, is
// refused with the name of what is wrong, its owner and mode, and what is allowed.
func TestKeyFileOwnerAndFolders(t *testing.T) {
	root := os.Geteuid() == 0
	for _, c := range []struct {
		name   string
		chown  string // which file gets another owner; "": none
		folder os.FileMode
		link   bool // to the file, from a folder of the mode; the file's own is 0700
		want   []string
	}{
		{"all is well", "", 0o700, false, nil},
		{"all may look", "", 0o755, false, nil},
		{"sticky", "", 0o777 | os.ModeSticky, false, nil},
		{"all may write", "", 0o777, false, []string{"folder ", "may be written by others", "0777", "sticky"}},
		{"a group may write", "", 0o770, false, []string{"folder ", "may be written by others", "0770"}},
		{"a link in a good folder", "", 0o755, true, nil},
		{"a link that others may change", "", 0o777, true, []string{"folder ", "may be written by others", "0777"}},
		{"another's file", "dir/keys", 0o700, false, []string{"dir/keys belongs to user id 12345", "this process to", "0600", "allowed owners"}},
		{"another's folder", "dir", 0o755, false, []string{"folder ", "dir belongs to user id 12345", "0755", "allowed owners"}},
		{"another's sticky folder", "dir", 0o777 | os.ModeSticky, false, []string{"dir belongs to user id 12345"}},
		{"another's folder above", ".", 0o700, false, []string{"belongs to user id 12345"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.chown != "" && !root {
				testenv.Lacking(t, "root", "files cannot be given to others")
			}
			top := t.TempDir()
			dir := filepath.Join(top, "dir")
			require.NoError(t, os.Mkdir(dir, 0o700))
			path := filepath.Join(dir, "keys")
			require.NoError(t, os.WriteFile(path, []byte("1 "+otherKey), 0o600))
			if c.link {
				dir = filepath.Join(top, "links")
				require.NoError(t, os.Mkdir(dir, 0o700))
				require.NoError(t, os.Symlink(path, filepath.Join(dir, "link")))
				path = filepath.Join(dir, "link")
			}
			require.NoError(t, os.Chmod(dir, c.folder))
			if c.chown != "" {
				require.NoError(t, os.Chown(filepath.Join(top, c.chown), somebody, -1))
			}
			_, err := NewKeyring(FromFile(path))
			if c.want == nil {
				require.NoError(t, err)
			}
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

const keyFileVariable = "MOEWIRE_TEST_WIRE_KEY_FILE"

// TestKeyFileOfNobody: in a user namespace that maps no user, every file is said to be
// this process's.
func TestKeyFileOfNobody(t *testing.T) {
	if path := os.Getenv(keyFileVariable); path != "" {
		_, err := NewKeyring(FromFile(path))
		require.ErrorContains(t, err, "any of them may be its owner")
		return
	}
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte("1 "+otherKey), 0o600))
	child := exec.Command(os.Args[0], "-test.run=^TestKeyFileOfNobody$", "-test.v")
	child.Env = append(os.Environ(), keyFileVariable+"="+path)
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	out, err := child.CombinedOutput()
	if err != nil && len(out) == 0 {
		testenv.Lacking(t, "userns", "no user namespace can be made: "+err.Error())
	}
	require.NoError(t, err, "%s", out)
}

// TestKeysAreWiped: what held a key is zero once it is replaced, or the ring is
// closed; and nothing is accepted or proved with a ring that is closed.
func TestKeysAreWiped(t *testing.T) {
	text := []byte("1 " + otherKey + ";2 " + otherKey2)
	r := must1(NewFixedKeyring(Lines(text), nil))
	require.Equal(t, make([]byte, len(text)), text)
	require.NoError(t, r.Reload(), "the same keys")
	held := []*[KeyBytes]byte{r.keys.secrets[1], r.keys.secrets[2]}
	given := r.secret(1)
	n := newNotary(t, func(c *Config) { c.Keys = r })
	note := must1(n.Seal(nil, []byte("before")))
	r.Close()
	r.Close()
	for _, secret := range held {
		require.Equal(t, [KeyBytes]byte{}, *secret)
	}
	require.NotEqual(t, [KeyBytes]byte{}, *given, "a copy is its holder's")
	require.False(t, r.Has(1))
	_, err := n.Open(note)
	require.ErrorIs(t, err, ErrKeyID)
	_, err = n.Open(must1(n.Seal(nil, []byte("after"))))
	require.ErrorIs(t, err, ErrKeyID)
	open := testConfig(t)
	for _, configs := range [][2]Config{{testConfig(t, func(c *Config) { c.Keys = r }), open}, {open, testConfig(t, func(c *Config) { c.Keys = r })}} {
		a, b := handshakes(t, configs[0], configs[1])
		require.Error(t, exchange(a, b))
	}

	texts := []string{"1 " + otherKey, "2 " + otherKey2}
	r = must1(NewKeyring(func() ([]byte, error) { return []byte(texts[0]), nil }))
	old := r.keys.secrets[1]
	texts = texts[1:]
	require.NoError(t, r.Reload())
	require.Equal(t, [KeyBytes]byte{}, *old)
	r.Close()
	require.ErrorIs(t, r.Reload(), errClosedRing)
}

// TestHandshakesForgetTheKey: the copy that a handshake works with is wiped when
// it is over.
func TestHandshakesForgetTheKey(t *testing.T) {
	config := testConfig(t)
	a, b := handshakes(t, config, config)
	hello := a.Start()
	held := a.secret
	require.NotNil(t, held)
	_, welcome, err := b.Step(hello)
	require.NoError(t, err)
	require.Nil(t, b.secret)
	_, _, err = a.Step(welcome)
	require.NoError(t, err)
	require.Nil(t, a.secret)
	require.Equal(t, [KeyBytes]byte{}, *held)
}

// TestClosedHandshakes: a handshake that is given up wipes its copy of the key,
// has no session, and is over; one that was over is left as it was.
func TestClosedHandshakes(t *testing.T) {
	before := NumOpenHandshakes()
	config := testConfig(t)
	a, b := handshakes(t, config, config)
	hello := a.Start()
	held := a.secret
	require.NotNil(t, held)
	_, welcome, err := b.Step(hello)
	require.NoError(t, err)
	require.Equal(t, before+2, NumOpenHandshakes())
	a.Close()
	a.Close()
	b.Close()
	require.Equal(t, [KeyBytes]byte{}, *held)
	require.Equal(t, before, NumOpenHandshakes())
	for _, h := range []*Handshake{a, b} {
		require.Nil(t, h.secret)
		require.Nil(t, h.session)
		require.Nil(t, h.Start())
		require.Zero(t, h.Need())
		n, out, err := h.Step(welcome)
		require.Zero(t, n)
		require.Nil(t, out)
		require.ErrorIs(t, err, errClosedHandshake)
	}

	a, b = handshakes(t, config, config)
	a.Close() // before it has begun
	require.Nil(t, a.Start())
	(*Handshake)(nil).Close()
	require.NoError(t, exchange(must1(NewHandshake(RoleClient, config)), b))
	b.Close()
	require.NotNil(t, b.Session())
	_, _, err = b.Step([]byte{1})
	require.NoError(t, err)
	require.Equal(t, before, NumOpenHandshakes())
}
