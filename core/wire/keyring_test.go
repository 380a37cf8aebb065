package wire

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyringText(t *testing.T) {
	r := testKeys(t)
	require.EqualValues(t, 7, r.Current())
	require.True(t, r.Has(7) && r.Has(4294967295))
	require.False(t, r.Has(8))
	require.Equal(t, byte(0x1f), r.secret(7)[31])
	upper := keysOf(t, "\t0   "+strings.ToUpper(otherKey)+" # spaces\r\n")
	require.Equal(t, byte(0xff), upper.secret(0)[0])
}

// badKeyTexts are no keyrings. None of the errors may show what is in them.
var badKeyTexts = map[string]string{
	"there is no key":        "# nothing\n\n",
	"64":                     "1 " + otherKey[:62],
	"66 characters":          "1 " + otherKey + "ab",
	"no hexadecimal":         "1 zz" + otherKey[2:],
	"all bytes":              "1 " + strings.Repeat("00", 32),
	"all bytes of":           "1 " + strings.Repeat("A5", 32),
	"number below":           "4294967296 " + otherKey,
	"not a number":           "-1 " + otherKey,
	"1 fields":               otherKey,
	"3 fields":               "1 " + otherKey + " " + otherKey2,
	"line 2: id 1":           "1 " + otherKey + "\n1 " + otherKey2,
	"more than 256 keys":     manyKeys(257),
	"more than 65536 bytes":  strings.Repeat("#\n", 40_000),
	"line 1: has a # within": "1 " + otherKey + "#remark",
	"line 2: has a #":        "# salt#\n1#2 " + otherKey,
	"line 3":                 "1 " + otherKey + "\n\nx " + otherKey2,
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d %s\n", i, otherKey)
	}
	return b.String()
}

// WF6: no key, a short one or a weak one: nothing is constructed, and the error
// does not show it.
func TestWF6BadKeys(t *testing.T) {
	for want, keys := range badKeyTexts {
		_, err := NewKeyring(text(keys))
		require.ErrorContains(t, err, want)
		for _, secret := range []string{otherKey[4:20], otherKey2[4:20], "A5A5"} {
			require.NotContains(t, err.Error(), secret)
		}
	}
	_, err := NewKeyring(nil)
	require.Error(t, err)
	_, err = NewKeyring(func() ([]byte, error) { return nil, os.ErrDeadlineExceeded })
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = NewSingles(Config{MaxPayloadBytes: 1}, idB, 6)
	require.ErrorContains(t, err, "Keys")
	_, err = NewSingles(Config{Keys: testKeys(t)}, idB, 6)
	require.ErrorContains(t, err, "MaxPayloadBytes")
}

// WF6: nothing that holds a key shows it, whatever it is printed with, alone or
// within something else.
func TestWF6NothingShowsKeys(t *testing.T) {
	config := testConfig(t)
	a, b := handshakes(t, config, config)
	require.NoError(t, exchange(a, b))
	s := a.Session()
	singles := must1(NewSingles(config, idB, 6))
	within := struct {
		Keys    *Keyring
		keys    *Keyring
		config  Config
		session *Session
		hand    *Handshake
	}{config.Keys, config.Keys, config, s, a}
	secrets := shownForms(config.Keys.secret(7)[:])
	for _, v := range []any{config.Keys, config, &config, s, a, b, singles, within, &within, s.NewDigest(), s.NewEncryptor(), s.NewDecryptor()} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			shown := fmt.Sprintf(verb, v)
			for _, secret := range secrets {
				require.NotContains(t, shown, secret, "%T with %s", v, verb)
			}
		}
	}
	for _, v := range []any{config.Keys, s, a} {
		require.Equal(t, hidden, fmt.Sprintf("%v", v))
		require.Equal(t, hidden, fmt.Sprintf("%x", v))
	}
	shown, err := json.Marshal(config.Keys)
	require.NoError(t, err)
	require.Equal(t, `"`+hidden+`"`, string(shown))
	require.Equal(t, []string{hidden, hidden, hidden, hidden, hidden}, []string{
		config.Keys.String(), config.Keys.GoString(), s.String(), s.GoString(), a.String(),
	})
}

// shownForms are how a part of a key might look in a log.
func shownForms(secret []byte) []string {
	part := secret[3:9]
	list := strings.Trim(fmt.Sprintf("%d", part), "[]")
	return []string{
		hex.EncodeToString(part), strings.ToUpper(hex.EncodeToString(part)), list,
		strings.ReplaceAll(list, " ", ", "), strings.Trim(fmt.Sprintf("%#v", part), "[]byte{}"),
	}
}

// WF6: tags are compared in constant time: nothing else compares in this
// package's sources.
func TestWF6ConstantTime(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	num := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source := string(must1(os.ReadFile(name)))
		require.NotContains(t, source, "bytes.Equal", name)
		require.NotContains(t, source, "bytes.Compare", name)
		require.NotContains(t, source, "reflect.", name)
		num += strings.Count(source, "hmac.Equal(")
	}
	require.Equal(t, 2, num, "of a frame, and of a payload")
}

func TestSources(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(path, []byte(testKeyText), 0o600))
	require.EqualValues(t, 7, must1(NewKeyring(FromFile(path))).Current())
	for _, mode := range []os.FileMode{0o620, 0o602} {
		require.NoError(t, os.Chmod(path, mode))
		_, err := NewKeyring(FromFile(path))
		require.ErrorContains(t, err, "written by others")
	}
	require.NoError(t, os.Chmod(path, 0o604))
	_, err := NewKeyring(FromFile(path))
	require.ErrorContains(t, err, "read by others")
	require.NoError(t, os.Chmod(path, 0o640))
	_, err = NewKeyring(FromFile(path))
	if info := must1(os.Stat(path)); info.Sys().(*syscall.Stat_t).Uid == 0 {
		require.NoError(t, err, "a group of root's")
	} else {
		require.ErrorContains(t, err, "read by others")
	}
	_, err = NewKeyring(FromFile(path + "-"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = NewKeyring(FromFile(filepath.Dir(path)))
	require.ErrorContains(t, err, "not a regular file")
	require.NoError(t, syscall.Mkfifo(path+".pipe", 0o600))
	_, err = NewKeyring(FromFile(path + ".pipe")) // comes back though nothing writes
	require.ErrorContains(t, err, "not a regular file")

	r := must1(NewKeyring(func() ([]byte, error) { return Lines([]byte("3 " + otherKey + ";4 " + otherKey2)), nil }))
	require.EqualValues(t, 3, r.Current())
	require.True(t, r.Has(4))
}

// A ring that cannot be read again stays as it was; what it was given is wiped.
func TestReload(t *testing.T) {
	given, fail := []byte("1 "+otherKey), error(nil)
	r := must1(NewKeyring(func() ([]byte, error) { return given, fail }))
	require.Equal(t, make([]byte, len(given)), given)
	require.Error(t, r.Reload(), "zeros are no ring")
	require.EqualValues(t, 1, r.Current())
	fail = errors.New("gone")
	require.ErrorIs(t, r.Reload(), fail)
	given, fail = []byte("2 "+otherKey), nil
	require.NoError(t, r.Reload())
	require.False(t, r.Has(1))
	require.True(t, r.Has(2))
	require.NoError(t, GenerateKeyring().Reload())
}

// Generated keys are different, and work.
func TestGenerateKeyring(t *testing.T) {
	a, b := GenerateKeyring(), GenerateKeyring()
	require.NotEqual(t, a.secret(1), b.secret(1))
	config := testConfig(t, func(c *Config) { c.Keys = a })
	shakeHands(t, config, config)
}
